package sim

import (
	"container/heap"
	"time"
)

// event is something that happens at a time; among equals in the order in which they
// were scheduled.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

// schedule is virtual time.
type schedule struct {
	now    time.Duration
	events events
	seq    uint64
}

// at has f happen at t, or now if that is over.
func (s *schedule) at(t time.Duration, f func()) {
	s.seq++
	heap.Push(&s.events, event{max(t, s.now), s.seq, f})
}

// next lets the next event happen and reports whether there was one.
func (s *schedule) next() bool {
	if len(s.events) == 0 {
		return false
	}
	e, _ := heap.Pop(&s.events).(event) // nothing else is in it
	s.now = e.at
	e.do()
	return true
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:forcetypeassert // see next
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return last
}
