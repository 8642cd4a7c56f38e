package group

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// quietAfter is how long a trouble must not be told of to count as over. It is
	// above the library's longest pause between two attempts.
	quietAfter = 30 * time.Second
	// maxTroubles bounds those that are remembered.
	maxTroubles = 256
)

// repeats keeps the library from telling of one trouble again and again: while a
// peer is down it does so several times a second. The first line is a warning, and
// one more line tells that it is over.
type repeats struct {
	mu       sync.Mutex
	troubles map[string]*trouble
}

type trouble struct {
	what  string
	about any // a peer's address, mostly
	last  time.Time
	times int
}

// again reports whether a line has been there lately.
func (r *repeats) again(now time.Time, what string, args []any) bool {
	if r == nil {
		return false
	}
	var about any
	if len(args) > 1 {
		about = args[1]
	}
	key := fmt.Sprint(what, about)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.troubles[key]
	if t == nil {
		if r.troubles == nil {
			r.troubles = map[string]*trouble{}
		}
		if len(r.troubles) < maxTroubles {
			r.troubles[key] = &trouble{what, about, now, 1}
		}
		return false
	}
	t.last = now
	t.times++
	return true
}

// over tells of the troubles that have ended.
func (r *repeats) over(now time.Time, log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, t := range r.troubles {
		if now.Sub(t.last) > quietAfter {
			log.Info("no more: "+t.what, "about", t.about, "times", t.times)
			delete(r.troubles, key)
		}
	}
}
