package measure

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Counters are the series of one counter family whose first labels are fixed and
// whose last two vary: finding one again costs a map read, no lock and no memory.
// It is safe for concurrent use.
type Counters struct {
	f     *family
	fixed []string
	mu    sync.Mutex // held to change known
	known atomic.Pointer[map[[2]string]Counter]
}

// Counters returns the series of family d whose first labels have these values.
// All labels but two are to be given.
func (r *Registry) Counters(d Desc, first ...string) *Counters {
	c := &Counters{f: r.family(d), fixed: first}
	c.known.Store(&map[[2]string]Counter{})
	return c
}

// Of is the series whose last two labels are a and b.
func (c *Counters) Of(a, b string) Counter {
	key := [2]string{a, b}
	if found, ok := (*c.known.Load())[key]; ok {
		return found
	}
	return c.find(key)
}

// find asks the family. What it answers is remembered as long as there are not
// more than the family may have series: beyond that all have one.
func (c *Counters) find(key [2]string) Counter {
	found := Counter{c.f.get(append(slices.Clip(c.fixed), key[0], key[1]))}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := *c.known.Load(); len(known) < c.f.cap() {
		next := maps.Clone(known)
		next[key] = found
		c.known.Store(&next)
	}
	return found
}
