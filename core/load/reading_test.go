package load

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

var onlyColumns = cmpopts.IgnoreUnexported(Loads{})

func readWorkers(n int) []fleet.Worker {
	var all []fleet.Worker
	for i := range n {
		w := fleet.Worker{ID: fleet.WorkerID(fmt.Sprint("w", i)), Epoch: fleet.Epoch(i + 1), Role: fleet.RoleBoth}
		if i%2 == 0 {
			w.Capacity.MaxRunning = 4
		}
		all = append(all, w)
	}
	return all
}

// readSide is a table with what is underway there.
type readSide struct {
	table  *Table
	c      *Columns
	open   []*Reservation
	vigils []*Vigil
}

// A reading that goes on from the one before finds what one from nothing finds,
// whatever happened between. Reading can make a slot doubted, so the two are of
// two tables to which the same happens.
func TestReadingMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 5
		workers := readWorkers(n)
		var both [2]readSide
		for i := range both {
			table := NewTable(&measure.Registry{})
			table.Patience = 3 * time.Second
			table.Changes().Open()
			both[i] = readSide{table: table, c: table.Columns(fleet.NewView(1, workers))}
		}
		now := time.Unix(1000, 0)
		var kept Loads
		slots := func(t *rapid.T, do func(*Slot)) {
			i := rapid.IntRange(0, n-1).Draw(t, "slot")
			do(both[0].c.Slots[i])
			do(both[1].c.Slots[i])
		}
		tables := func(do func(*Table)) {
			do(both[0].table)
			do(both[1].table)
		}
		reservations := func(t *rapid.T, do func(*Reservation)) {
			if all := len(both[0].open); all > 0 {
				i := rapid.IntRange(0, all-1).Draw(t, "which")
				do(both[0].open[i])
				do(both[1].open[i])
			}
		}
		count := func(t *rapid.T) uint32 { return uint32(rapid.IntRange(0, 6).Draw(t, "count")) }
		backoff := Backoff{First: time.Second, Longest: 8 * time.Second}
		index := uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				i, phase := rapid.IntRange(0, n-1).Draw(t, "slot"), Phase(rapid.IntRange(0, 1).Draw(t, "phase"))
				for side := range both {
					s := &both[side]
					s.open = append(s.open, s.c.Slots[i].Reserve(phase, Work{Prompt: 10, Context: 20}))
				}
			},
			"token": func(t *rapid.T) { reservations(t, (*Reservation).FirstToken) },
			"close": func(t *rapid.T) { reservations(t, (*Reservation).Close) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(-2000, 6000).Draw(t, "ms")) * time.Millisecond)
			},
			"hear": func(t *rapid.T) {
				requests := float64(count(t))
				slots(t, func(s *Slot) { s.Hear(now, requests) })
			},
			"unheard": func(t *rapid.T) { slots(t, (*Slot).Unheard) },
			"assign": func(t *rapid.T) {
				tokens := float64(count(t))
				slots(t, func(s *Slot) { s.Assign(tokens) })
			},
			"fade":        func(t *rapid.T) { slots(t, func(s *Slot) { s.Fade(.5) }) },
			"eject":       func(t *rapid.T) { slots(t, func(s *Slot) { s.Eject(now, backoff) }) },
			"unreachable": func(t *rapid.T) { slots(t, func(s *Slot) { s.EjectUnreachable(now, backoff) }) },
			"heal":        func(t *rapid.T) { slots(t, (*Slot).Heal) },
			"reached":     func(t *rapid.T) { slots(t, (*Slot).Reached) },
			"refused":     func(t *rapid.T) { slots(t, func(s *Slot) { s.Refused(now) }) },
			"took":        func(t *rapid.T) { slots(t, (*Slot).Took) },
			"doubt":       func(t *rapid.T) { slots(t, func(s *Slot) { s.Doubt(now) }) },
			"answered":    func(t *rapid.T) { slots(t, func(s *Slot) { s.Answered(now) }) },
			"watch": func(t *rapid.T) {
				i := rapid.IntRange(0, n-1).Draw(t, "slot")
				for side := range both {
					v := both[side].c.Slots[i].Watch(now, 100)
					both[side].vigils = append(both[side].vigils, &v)
				}
			},
			"vigil": func(t *rapid.T) {
				if len(both[0].vigils) == 0 {
					return
				}
				i := rapid.IntRange(0, len(both[0].vigils)-1).Draw(t, "which")
				what := rapid.IntRange(0, 3).Draw(t, "what")
				for side := range both {
					switch v := both[side].vigils[i]; what {
					case 0:
						v.Token(now)
					case 1:
						v.Block()
					case 2:
						v.Unblock(now)
					default:
						v.End()
					}
				}
			},
			"others": func(t *rapid.T) {
				v := Vector{Whole: rapid.Bool().Draw(t, "whole")}
				v.Add(uint64(both[0].c.Slots[rapid.IntRange(0, n-1).Draw(t, "slot")].Key.Epoch), Counts{Prefill: count(t), Decode: count(t), Prompt: 70, Context: 90})
				tables(func(table *Table) { table.SetOthers(&v) })
			},
			"heard": func(t *rapid.T) {
				vectors, gateways := uint64(count(t)), 1+int(count(t))
				tables(func(table *Table) {
					var v Vector
					table.Changes().Take(&v)
					table.Changes().Heard(vectors, gateways)
				})
			},
			"forget": func(*rapid.T) { tables((*Table).ForgetOthers) },
			"view": func(t *rapid.T) {
				index++
				workers[rapid.IntRange(0, n-1).Draw(t, "worker")].Epoch += n
				for side := range both {
					both[side].c = both[side].table.Columns(fleet.NewView(index, workers))
				}
			},
			"": func(t *rapid.T) {
				asked := rapid.SampledFrom([][]int32{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 2, 4, 1, 3}, {1, 3}, {}}).Draw(t, "asked")
				both[0].c.Read(asked, now, &kept)
				var fresh Loads
				both[1].c.Read(asked, now, &fresh)
				if diff := cmp.Diff(fresh, kept, onlyColumns, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("-from nothing +going on:\n%s", diff)
				}
			},
		})
	})
}

// A stream that is read again can fall silent.
func TestReadingAfterUnblock(t *testing.T) {
	table := NewTable(&measure.Registry{})
	c := table.Columns(fleet.NewView(1, readWorkers(1)))
	now := time.Unix(1000, 0)
	v := c.Slots[0].Watch(now, 1)
	v.Block()
	var l Loads
	c.Read([]int32{0}, now.Add(time.Hour), &l)
	v.Unblock(now.Add(time.Hour))
	if c.Read([]int32{0}, now.Add(time.Hour+DefaultPatience), &l); len(l.Passed) != 0 {
		t.Error("doubted before its time")
	}
	if c.Read([]int32{0}, now.Add(time.Hour+DefaultPatience+time.Second), &l); len(l.Passed) != 1 {
		t.Error("not doubted")
	}
}

// What the leader has heard is guessed no more, also when others are as busy as
// before.
func TestReadingAfterHeard(t *testing.T) {
	table := NewTable(&measure.Registry{})
	c := table.Columns(fleet.NewView(1, readWorkers(2)))
	changes := table.Changes()
	changes.Open()
	var told, others Vector
	r := c.Slots[0].Reserve(Decode, Work{})
	changes.Take(&told)
	others.Add(1, Counts{Decode: 1})
	table.SetOthers(&others)
	changes.Heard(1, 2)
	c.Slots[1].Reserve(Decode, Work{})
	r.Close()
	changes.Take(&told)
	var l Loads
	if c.Read([]int32{0, 1}, time.Unix(1000, 0), &l); l.Requests[1] != 2 {
		t.Errorf("one's own and one guessed are %v", l.Requests[1])
	}
	changes.Heard(2, 2)
	if c.Read([]int32{0, 1}, time.Unix(1000, 0), &l); l.Requests[1] != 1 {
		t.Errorf("%v after the leader has heard", l.Requests[1])
	}
}

// Beside writers a reading is never of a state that has passed before it began.
func TestReadingBesideWriters(t *testing.T) {
	const n, rounds = 8, 400
	table := NewTable(&measure.Registry{})
	c := table.Columns(fleet.NewView(1, readWorkers(n)))
	asked := make([]int32, n)
	for i := range asked {
		asked[i] = int32(i)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s := c.Slots[i]
			var l Loads
			for k := range rounds {
				r := s.Reserve(Decode, Work{Prompt: 3, Context: 5})
				c.Read(asked, time.Unix(1000, int64(k)), &l)
				if l.InFlight[i] != 1 || l.Queued[i] != 3 || l.Context[i] != 5 {
					t.Errorf("reserved: %v in flight, %v queued, %v context", l.InFlight[i], l.Queued[i], l.Context[i])
				}
				r.Close()
				c.Read(asked, time.Unix(1000, int64(k)), &l)
				if l.InFlight[i] != 0 || l.Queued[i] != 0 || l.Context[i] != 0 {
					t.Errorf("closed: %v in flight, %v queued, %v context", l.InFlight[i], l.Queued[i], l.Context[i])
				}
			}
		})
	}
	wg.Wait()
}
