package route

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/mix"
)

// LabelAdapterSlots is the label by which a worker states how many adapters it
// keeps loaded at once. Without it, it is taken to keep all that it serves.
const LabelAdapterSlots = "adapter-slots"

// maxAdapterSlots bounds what a worker may say there.
const maxAdapterSlots = 1 << 20

// LabelZone is the label by which a worker states the zone that it stands in.
const LabelZone = "zone"

// zoneOf is a number for the worker's zone, the same at every gateway; 0 is unknown.
func zoneOf(w *fleet.Worker) uint32 {
	i := slices.IndexFunc(w.Labels, func(l fleet.Label) bool { return l.Key == LabelZone })
	if i < 0 {
		return 0
	}
	// Neither 0 nor all ones, which are no zones.
	return uint32(xxhash.Sum64String(w.Labels[i].Value)>>33) + 1
}

// extra are the columns that stand in a roster for the few policies that ask for
// them.
type extra struct {
	step, tokenBytes, adapters, slots []float64
	group, role, zone                 []uint32
	heard                             []int64
	some                              bool // a worker serves the model as an adapter
}

func (e *extra) begin() {
	for _, column := range [...]*[]float64{&e.step, &e.tokenBytes, &e.adapters, &e.slots} {
		*column = (*column)[:0]
	}
	e.group, e.role, e.zone, e.heard, e.some = e.group[:0], e.role[:0], e.zone[:0], e.heard[:0], false
}

// add is for a worker of the model, which it may serve as an adapter: as one of
// its models beyond the first.
func (e *extra) add(f *facts, w *fleet.Worker, model string) {
	adapters := 0
	if len(w.Models) > 0 && w.Models[0] != model {
		adapters, e.some = len(w.Models)-1, true
	}
	group := f.compat
	if !f.moves || f.role&fleet.RolePrefill == 0 {
		group = 0
	}
	e.step, e.tokenBytes = append(e.step, f.step), append(e.tokenBytes, f.tokenBytes)
	e.adapters, e.slots = append(e.adapters, float64(adapters)), append(e.slots, f.slots)
	e.group, e.role, e.zone = append(e.group, group), append(e.role, uint32(f.role)), append(e.zone, f.zone)
	e.heard = append(e.heard, f.heard)
}

// more fills the columns of a roster that policies ask for, and leaves the others
// nil.
func (c *Columns) more(s *roster, out []int32, needs Needs) {
	c.Step, c.TokenBytes, c.Group, c.Adapters, c.AdapterSlots, c.Lately, c.Missed, c.Found = nil, nil, nil, nil, nil, nil, nil, nil
	c.Role, c.Zone, c.Age = nil, nil, nil
	if needs&NeedsStep != 0 {
		c.Step = kept(&c.memory.step, s.extra.step, out)
	}
	if needs&NeedsTransfer != 0 {
		c.TokenBytes = kept(&c.memory.tokenBytes, s.extra.tokenBytes, out)
		c.Group = kept(&c.memory.group, s.extra.group, out)
	}
	if needs&NeedsPlace != 0 {
		c.Role = kept(&c.memory.role, s.extra.role, out)
		c.Zone = kept(&c.memory.zone, s.extra.zone, out)
	}
	if needs&NeedsAdapters != 0 {
		c.Adapters = kept(&c.memory.adapters, s.extra.adapters, out)
		c.AdapterSlots = kept(&c.memory.slots, s.extra.slots, out)
	}
}

// aged writes how long ago each of those that are left last said something.
func (c *Columns) aged(s *roster, out []int32, now time.Time) {
	heard := kept(&c.memory.heard, s.extra.heard, out)
	c.Age = sized(c.memory.age, len(heard))
	c.memory.age = c.Age
	at := now.UnixNano()
	for k, t := range heard {
		c.Age[k] = math.NaN()
		if t != 0 {
			c.Age[k] = float64(max(at-t, 0)) / 1e9
		}
	}
}

// kept is a column without the places in out, itself when there are none.
func kept[T any](own *[]T, column []T, out []int32) []T {
	if len(out) == 0 {
		return column
	}
	return without(own, column, out)
}

// extraMemory is that of columns that few policies ask for.
type extraMemory struct {
	step, tokenBytes, adapters, slots, lately, missed, found, age []float64

	group, role, zone []uint32
	heard             []int64
}

// more fills what few policies ask for and what this router keeps itself.
func (r *Router) more(kind int, s *roster, q *Query, needs Needs) {
	p := &r.phases[kind]
	c := &p.columns
	c.more(s, p.out, needs)
	if kind == prefilling || r.cfg.Mode == Never {
		c.Group = nil // nobody computes a part for another then
	}
	if needs&NeedsAdapters != 0 {
		c.Lately = sized(c.memory.lately, len(c.Worker))
		c.memory.lately = c.Lately
		r.lately.fill(q, c.Key, s.extra.some, c.Lately)
	}
	if needs&NeedsAge != 0 {
		c.aged(s, p.out, q.Now)
	}
	if needs&NeedsWindow != 0 {
		r.window.follow(r.aligned.view, q.Now)
		c.Missed, c.Found = sized(c.memory.missed, len(c.Worker)), sized(c.memory.found, len(c.Worker))
		c.memory.missed, c.memory.found = c.Missed, c.Found
		for k, i := range c.Worker {
			c.Missed[k], c.Found[k] = r.window.missed[i], r.window.found[i]
		}
	}
}

// remember keeps what policies ask for of d, which is carried out.
func (r *Router) remember(q *Query, d *Decision) {
	if r.ever&NeedsAdapters != 0 {
		r.lately.note(q, r.aligned.facts[d.Serve].key)
		if d.Prefill != None {
			r.lately.note(q, r.aligned.facts[d.Prefill].key)
		}
	}
	if r.ever&NeedsWindow == 0 {
		return
	}
	if d.Prefill != None { // the one that serves computes nothing
		r.window.add(d.Prefill, max(q.Prompt-d.PrefillHit, 0), d.PrefillHit)
		return
	}
	r.window.add(d.Serve, max(q.Prompt-d.ServeHit, 0), d.ServeHit)
}

// lately remembers when this gateway last gave a worker a request for an adapter.
// It is a table of fixed size: a pair that falls on another's place displaces it,
// and what is displaced was "not lately".
type lately struct{ cells []latelyCell }

type latelyCell struct {
	pair uint64
	at   int64 // unix nanoseconds
}

const latelyCells = 1 << 13

// note enters that the worker of that key gets a request of q's model.
func (l *lately) note(q *Query, key uint64) {
	if l.cells == nil {
		l.cells = make([]latelyCell, latelyCells)
	}
	pair := mix.Bits(xxhash.Sum64String(q.Model) ^ key)
	l.cells[pair%latelyCells] = latelyCell{pair, q.Now.UnixNano()}
}

// fill writes how many seconds ago that was, or infinity. Where the model is
// nobody's adapter it does not look.
func (l *lately) fill(q *Query, keys []uint64, some bool, seconds []float64) {
	for k := range seconds {
		seconds[k] = math.Inf(1)
	}
	if !some || l.cells == nil {
		return
	}
	model, now := xxhash.Sum64String(q.Model), q.Now.UnixNano()
	for k, key := range keys {
		pair := mix.Bits(model ^ key)
		if cell := l.cells[pair%latelyCells]; cell.pair == pair {
			seconds[k] = float64(max(now-cell.at, 0)) / 1e9
		}
	}
}

// labelled reads a number from a label; NaN is unknown.
func labelled(w *fleet.Worker, key string, most int64) float64 {
	i := slices.IndexFunc(w.Labels, func(l fleet.Label) bool { return l.Key == key })
	if i < 0 {
		return math.NaN()
	}
	n, err := strconv.ParseInt(w.Labels[i].Value, 10, 64)
	if err != nil || n <= 0 || n > most {
		return math.NaN()
	}
	return float64(n)
}

// reported is what stands in for a number that a worker does not report: the mean of
// those that others report, or usual where nobody does.
type reported struct {
	column []float64
	usual  float64
}

func reportedOf(column []float64, usual float64) reported {
	sum, n := 0.0, 0
	for _, v := range column {
		if v > 0 {
			sum += v
			n++
		}
	}
	if n > 0 {
		usual = sum / float64(n)
	}
	return reported{column, usual}
}

// measuredRates are the candidates' rates, where unmeasured ones are usualRate if all
// are.
func (c *Columns) measuredRates() reported {
	known := c.rates
	if !known.surveyed {
		known = ratesOf(c.Rate)
	}
	if known.mean == 0 {
		known.mean = usualRate
	}
	return reported{c.Rate, known.mean}
}

// at is the number for candidate i. A column that was not filled is unknown.
func (k reported) at(i int) float64 {
	if i < len(k.column) && k.column[i] > 0 {
		return k.column[i]
	}
	return k.usual
}
