package route

import (
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// roster is the facts of those workers of a model that can do one kind of work,
// as columns. They stand until a source publishes something new: a decision
// takes them as they are. The loads stand beside them, since a reading is of the
// same workers as the one before.
type roster struct {
	workers []int32 // places in View.Workers, rising
	key     []uint64
	source  []source
	number  []prefix.Worker // in the source's index
	trust   []float64

	running, waiting, rate, active, capacity []float64
	rates                                    rates

	extra extra

	loads    load.Loads
	events   bool          // every source is fromEvents
	top      prefix.Worker // the highest number
	draining []int32       // workers that would be here if they were not draining
	version  uint64        // of the facts
}

// rosters are those of a model, by kind of work.
type rosters [2]roster

// roster is the workers of the model, of which there are some, for serving or
// prefilling.
func (a *aligned) roster(model string, kind int) *roster {
	both := a.rosters[model]
	if both == nil {
		both = &rosters{}
		a.rosters[model] = both
	}
	s := &both[kind]
	if s.version != a.version {
		s.version = a.version
		s.fill(a, model, kind)
	}
	return s
}

func (s *roster) fill(a *aligned, model string, kind int) {
	s.workers, s.key, s.draining = s.workers[:0], s.key[:0], s.draining[:0]
	s.source, s.number, s.trust, s.events, s.top = s.source[:0], s.number[:0], s.trust[:0], true, 0
	for _, column := range s.floats() {
		*column = (*column)[:0]
	}
	s.extra.begin()
	for _, i := range a.view.Serving(model) {
		f := &a.facts[i]
		switch {
		case !f.does(kind):
			continue
		case f.draining:
			s.draining = append(s.draining, i)
			continue
		}
		s.workers, s.key = append(s.workers, i), append(s.key, f.key)
		s.source, s.number, s.trust = append(s.source, f.source), append(s.number, f.number), append(s.trust, f.trust)
		s.events, s.top = s.events && f.source == fromEvents, max(s.top, f.number)
		s.extra.add(f, &a.view.Workers[i], model)
		for k, v := range [...]float64{f.running, f.waiting, f.rate, f.active, f.capacity} {
			column := s.floats()[k]
			*column = append(*column, v)
		}
	}
	s.rates = ratesOf(s.rate)
}

// floats are the columns of numbers, in the order in which facts have them.
func (s *roster) floats() [5]*[]float64 {
	return [...]*[]float64{&s.running, &s.waiting, &s.rate, &s.active, &s.capacity}
}

// does reports whether the worker can do that kind of work.
func (f *facts) does(kind int) bool {
	if kind == prefilling {
		return f.role&fleet.RolePrefill != 0 && f.moves
	}
	return f.role&fleet.RoleDecode != 0
}

// without is a column without the places in out, which rise. The result is in
// own's memory, which may be the column's.
func without[T any](own *[]T, column []T, out []int32) []T {
	kept, from := (*own)[:0], int32(0)
	for _, k := range out {
		kept = append(kept, column[from:k]...)
		from = k + 1
	}
	kept = append(kept, column[from:]...)
	*own = kept
	return kept
}
