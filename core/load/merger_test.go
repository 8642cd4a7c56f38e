package load

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

var at0 = time.Unix(100, 0)

// apply makes known what a gateway knows of the others once it has taken v.
func apply(known map[uint64]Counts, v *Vector) {
	if v.Whole {
		clear(known)
	}
	for i, epoch := range v.Epoch {
		if c := v.At(i); c != (Counts{}) {
			known[epoch] = c
		} else {
			delete(known, epoch)
		}
	}
}

// Whatever gateways say, join, leave and whatever workers come and go: when a
// gateway has taken what there is, it knows the sum of the others' last words on
// the workers that are there.
func TestMergerSumsOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type gateway struct {
			member *Member
			says   map[uint64]Counts
			knows  map[uint64]Counts
		}
		m := NewMerger()
		var index uint64 = 1
		var live []uint64
		gateways := map[string]*gateway{}
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		follow := func() {
			var workers []fleet.Worker
			for _, epoch := range live {
				workers = append(workers, fleet.Worker{ID: fleet.WorkerID(strconv.FormatUint(epoch, 10)), Epoch: fleet.Epoch(epoch)})
			}
			m.Follow(fleet.NewView(index, workers))
			for _, g := range gateways {
				maps.DeleteFunc(g.says, func(epoch uint64, _ Counts) bool { return epoch <= index && !slices.Contains(live, epoch) })
			}
		}
		joined := func(t *rapid.T) *gateway {
			g := gateways[names.Draw(t, "gateway")]
			if g == nil {
				t.Skip("not a member")
			}
			return g
		}
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				name := names.Draw(t, "gateway")
				x, err := m.Join(name, 1, &Vector{})
				if err != nil {
					t.Fatal(err)
				}
				if old := gateways[name]; old != nil {
					if err := old.member.Update(&Vector{}); !errors.Is(err, ErrReplaced) {
						t.Fatalf("a replaced member spoke: %v", err)
					}
				}
				gateways[name] = &gateway{x, map[uint64]Counts{}, map[uint64]Counts{}}
			},
			"leave": func(t *rapid.T) {
				name := names.Draw(t, "gateway")
				if g := gateways[name]; g != nil {
					g.member.Leave()
					g.member.Leave()
					delete(gateways, name)
				}
			},
			"worker comes": func(t *rapid.T) {
				index++
				live = append(live, index)
				follow()
			},
			"worker goes": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("none")
				}
				index++
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				live = slices.Delete(slices.Clone(live), i, i+1)
				follow()
			},
			"say": func(t *rapid.T) {
				g := joined(t)
				v := Vector{Whole: rapid.Bool().Draw(t, "whole")}
				for range rapid.IntRange(0, 4).Draw(t, "rows") {
					n := uint32(rapid.IntRange(0, 3).Draw(t, "n"))
					v.Add(uint64(rapid.IntRange(1, int(index)+3).Draw(t, "epoch")), Counts{n, n / 2, uint64(n) * 10, uint64(n) * 20})
				}
				if err := g.member.Update(&v); err != nil {
					t.Fatal(err)
				}
				apply(g.says, &v)
				maps.DeleteFunc(g.says, func(epoch uint64, _ Counts) bool { return epoch <= index && !slices.Contains(live, epoch) })
			},
			"take": func(t *rapid.T) {
				g := joined(t)
				var v Vector
				if _, err := g.member.Take(&v); err != nil {
					t.Fatal(err)
				}
				if err := v.Validate(MaxGateways); err != nil {
					t.Fatal(err)
				}
				apply(g.knows, &v)
				want := map[uint64]Counts{}
				for _, other := range gateways {
					if other == g {
						continue
					}
					for epoch, c := range other.says {
						want[epoch] = want[epoch].plus(c)
					}
				}
				// Of workers that are gone it may still know; its own view tells it so.
				maps.DeleteFunc(g.knows, func(epoch uint64, _ Counts) bool { return epoch <= index && !slices.Contains(live, epoch) })
				if !maps.Equal(g.knows, want) {
					t.Fatalf("knows %v, want %v", g.knows, want)
				}
			},
			"": func(t *rapid.T) {
				if m.Gateways() != len(gateways) {
					t.Fatalf("%d members, want %d", m.Gateways(), len(gateways))
				}
			},
		})
		for _, g := range gateways {
			g.member.Leave()
		}
		for row, c := range m.total {
			if c != (Counts{}) {
				t.Fatalf("row %d has %+v when all have left", row, c)
			}
		}
	})
}

// A table that takes in what a merger gives shows what it says, and forgets it
// whole.
func TestTablesMirrorTheMerger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMerger()
		var tables []*Table
		var members []*Member
		keys := []Key{{"a", 1}, {"b", 2}, {"c", 3}}
		v := view(3, keys...)
		heard := make([]uint64, 3)
		m.Follow(v)
		for i := range 3 {
			table := NewTable(&measure.Registry{})
			table.Changes().Open()
			table.Columns(v)
			tables = append(tables, table)
			x, err := m.Join(strconv.Itoa(i), 0, &Vector{})
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, x)
		}
		var own, others Vector
		exchange := func(i int, whole bool) {
			if whole {
				tables[i].Changes().Whole(&own)
				heard[i] = 0
			} else if tables[i].Changes().Take(&own) {
				t.Fatal("waits although all was heard")
			}
			if own.Whole || own.Len() > 0 {
				heard[i]++
			}
			if err := members[i].Update(&own); err != nil {
				t.Fatal(err)
			}
		}
		hear := func(i int) {
			ok, err := members[i].Take(&others)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				tables[i].SetOthers(&others)
			}
			tables[i].Changes().Heard(heard[i], 3)
		}
		for i := range 3 {
			exchange(i, true)
		}
		var open []*Reservation
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				s := tables[rapid.IntRange(0, 2).Draw(t, "table")].Columns(v).Slots[rapid.IntRange(0, 2).Draw(t, "worker")]
				open = append(open, s.Reserve(Phase(rapid.IntRange(0, 1).Draw(t, "phase")), Work{Prompt: 10, Context: 20}))
			},
			"first token": func(t *rapid.T) {
				if len(open) > 0 {
					open[rapid.IntRange(0, len(open)-1).Draw(t, "which")].FirstToken()
				}
			},
			"close": func(t *rapid.T) {
				if len(open) > 0 {
					i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
					open[i].Close()
					open = slices.Delete(open, i, i+1)
				}
			},
			"exchange": func(t *rapid.T) {
				exchange(rapid.IntRange(0, 2).Draw(t, "table"), rapid.IntRange(0, 5).Draw(t, "whole") == 0)
			},
			"settle": func(t *rapid.T) {
				for i := range 3 {
					exchange(i, false)
				}
				for i := range 3 {
					hear(i)
				}
				for i, table := range tables {
					for w, s := range table.Columns(v).Slots {
						var in, prompt, context int
						for j, other := range tables {
							o := other.Columns(v).Slots[w]
							prompt, context = prompt+int(o.prompt.Load()), context+int(o.context.Load())
							if i != j {
								in += o.InFlight()
							}
						}
						if s.Others() != in || s.Foreign() != in || int(s.QueuedPrompt()) != prompt || int(s.Context()) != context {
							t.Fatalf("table %d worker %d: %d others, %d foreign, %d queued, %d held; want %d, %d, %d", i, w, s.Others(), s.Foreign(), s.QueuedPrompt(), s.Context(), in, prompt, context)
						}
					}
				}
			},
		})
		for _, table := range tables {
			table.ForgetOthers()
			for _, s := range table.Columns(v).Slots {
				if s.Others() != 0 || s.Foreign() != 0 {
					t.Fatalf("%d requests of others were not forgotten", s.Others())
				}
			}
			if table.others.others != 0 {
				t.Fatalf("%d requests of others in the sum", table.others.others)
			}
		}
	})
}

func TestMergerBounds(t *testing.T) {
	m := NewMerger()
	m.Follow(view(5, Key{"a", 5}))
	first, err := m.Join("g", 7, &Vector{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Join("g", 6, &Vector{}); !errors.Is(err, ErrReplaced) {
		t.Errorf("an older incarnation: %v", err)
	}
	for i := 1; i < MaxGateways; i++ {
		if _, err := m.Join(strconv.Itoa(i), 0, &Vector{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Join("one more", 0, &Vector{}); !errors.Is(err, ErrTooMany) {
		t.Errorf("more gateways than there may be: %v", err)
	}
	// Workers that nobody knows: bounded, and their room is used again.
	for round := range 3 {
		for i := range maxEarly {
			var v Vector
			v.Add(uint64(1000+round*maxEarly+i), Counts{Prefill: 1})
			if err := first.Update(&v); err != nil {
				t.Fatalf("round %d, %d: %v", round, i, err)
			}
		}
		var v Vector
		v.Add(1<<40, Counts{Prefill: 1})
		if err := first.Update(&v); !errors.Is(err, ErrTooMany) {
			t.Fatalf("more early workers than there may be: %v", err)
		}
		if err := first.Update(&Vector{Whole: true}); err != nil {
			t.Fatal(err)
		}
		for _, x := range m.members {
			if _, err := x.Take(&v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(m.epoch) > maxEarly+1 {
		t.Errorf("%d rows", len(m.epoch))
	}
}

// What is in flight to the leader is bounded; what changes meanwhile comes
// together.
func TestChangesWaitForTheLeader(t *testing.T) {
	table := NewTable(&measure.Registry{})
	s := table.Columns(view(1, Key{"a", 1})).Slots[0]
	c := table.Changes()
	s.Reserve(Prefill, Work{}) // nobody listens
	if c.head.Load() != nil {
		t.Error("a slot is listed although nobody reads")
	}
	c.Open()
	var v Vector
	c.Whole(&v)
	if v.Len() != 1 || v.At(0).Prefill != 1 {
		t.Fatalf("whole: %+v", v)
	}
	for range flight - 1 {
		s.Reserve(Prefill, Work{})
		if c.Take(&v) || v.Len() != 1 {
			t.Fatal("does not take")
		}
	}
	s.Reserve(Prefill, Work{})
	s.Reserve(Decode, Work{})
	if !c.Take(&v) || v.Len() != 0 {
		t.Fatal("does not wait")
	}
	c.Heard(3, 2)
	if got := s.seen.requests.Load(); got != 3 {
		t.Errorf("%d requests seen", got)
	}
	if c.Take(&v) || v.Len() != 1 || v.At(0) != (Counts{Prefill: flight + 1, Decode: 1}) {
		t.Errorf("together: %+v", v)
	}
	c.Heard(1<<60, 2) // more than was said
	if got := s.seen.requests.Load(); got != flight+2 {
		t.Errorf("%d requests seen", got)
	}
	if c.Close(); len(c.ready) > 1 {
		t.Error("more than one signal")
	}
}

// Own work that the others have not heard of counts once more for each of them,
// as far as they are as busy.
func TestGuess(t *testing.T) {
	table := NewTable(&measure.Registry{})
	columns := table.Columns(view(2, Key{"a", 1}, Key{"b", 2}))
	s := columns.Slots[0]
	c := table.Changes()
	c.Open()
	for range 4 {
		s.Reserve(Prefill, Work{Prompt: 10})
	}
	var v Vector
	c.Whole(&v)
	v.Reset()
	v.Add(2, Counts{Decode: 8})
	table.SetOthers(&v)
	c.Heard(1, 9)
	if s.Foreign() != 0 || s.QueuedPrompt() != 40 {
		t.Errorf("all is heard: %d foreign, %d queued", s.Foreign(), s.QueuedPrompt())
	}
	for range 3 { // twice as busy: 8 to 4
		s.Reserve(Prefill, Work{Prompt: 10})
	}
	if s.Foreign() != 6 || s.QueuedPrompt() != 70+60 || s.Others() != 0 {
		t.Errorf("%d foreign, %d queued, %d others", s.Foreign(), s.QueuedPrompt(), s.Others())
	}
	var l Loads
	columns.Read([]int32{0, 1}, at0, &l)
	if l.Requests[0] != 13 || l.Queued[0] != 130 || l.Requests[1] != 8 {
		t.Errorf("columns: %v, %v", l.Requests, l.Queued)
	}
	c.Heard(1, 2) // one other gateway, which counts once at most
	if s.Foreign() != 3 {
		t.Errorf("%d foreign", s.Foreign())
	}
	table.ForgetOthers()
	if s.Foreign() != 0 {
		t.Errorf("%d foreign when alone", s.Foreign())
	}
}

// A worker that others fill is full, but not for a gateway that has less than its
// share of it.
func TestOthersFillAWorker(t *testing.T) {
	table := NewTable(&measure.Registry{})
	s := table.Columns(fleet.NewView(1, []fleet.Worker{{ID: "a", Epoch: 1, Role: fleet.RoleBoth, Capacity: fleet.Capacity{MaxRunning: 8}}})).Slots[0]
	others := func(n uint32) {
		var v Vector
		v.Add(1, Counts{Prefill: n / 2, Decode: n - n/2})
		table.SetOthers(&v)
		table.Changes().Heard(0, 3)
	}
	tests := []struct {
		own    int
		others uint32
		full   bool
	}{
		{0, 0, false},
		{0, 9, false}, // its share is 3
		{2, 20, false},
		{3, 5, false},
		{3, 6, true},
		{8, 0, false},
		{9, 0, true},
	}
	var open []*Reservation
	for _, tt := range tests {
		for len(open) < tt.own {
			open = append(open, s.Reserve(Decode, Work{}))
		}
		others(tt.others)
		if s.Full() != tt.full || s.InFlight() != tt.own {
			t.Errorf("%d own, %d of others: full is %v", tt.own, tt.others, s.Full())
		}
	}
	for _, r := range open[5:] {
		r.Close()
	}
	if others(9); !s.Full() {
		t.Error("not full")
	}
	if table.ForgetOthers(); s.Full() {
		t.Error("full of what was forgotten")
	}
}

// The worker's own word counts only what no gateway tells of.
func TestForeignCountsNobodyTwice(t *testing.T) {
	table := NewTable(&measure.Registry{})
	s := table.Columns(view(1, Key{"a", 1})).Slots[0]
	s.Reserve(Decode, Work{})
	var v Vector
	v.Add(1, Counts{Decode: 5})
	table.SetOthers(&v)
	s.Hear(at0, 8)
	if s.Foreign() != 7 {
		t.Errorf("%d foreign, want 5 of others and 2 of nobody", s.Foreign())
	}
	s.Unheard()
	if s.Foreign() != 5 {
		t.Errorf("%d foreign, want 5 of others", s.Foreign())
	}
}

// Nothing is allocated while the same workers are told of again and again.
func TestExchangeDoesNotAllocate(t *testing.T) {
	m := NewMerger()
	var keys []Key
	for i := range 100 {
		keys = append(keys, Key{fleet.WorkerID(strconv.Itoa(i)), fleet.Epoch(i + 1)})
	}
	v := view(100, keys...)
	m.Follow(v)
	table := NewTable(&measure.Registry{})
	slots := table.Columns(v).Slots
	c := table.Changes()
	c.Open()
	a, errA := m.Join("a", 0, &Vector{})
	b, errB := m.Join("b", 0, &Vector{})
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	var own, others Vector
	c.Whole(&own)
	var words uint64
	tick := func() {
		for _, s := range slots {
			s.move(Decode, 1)
		}
		c.Take(&own)
		if err := a.Update(&own); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Take(&others); err != nil {
			t.Fatal(err)
		}
		table.SetOthers(&others)
		words++
		c.Heard(words, 2)
	}
	for range flight + 1 {
		tick()
	}
	if n := testing.AllocsPerRun(100, tick); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkExchange(b *testing.B) {
	m := NewMerger()
	var keys []Key
	for i := range 1000 {
		keys = append(keys, Key{fleet.WorkerID(strconv.Itoa(i)), fleet.Epoch(i + 1)})
	}
	m.Follow(view(1000, keys...))
	var members []*Member
	for i := range 8 {
		x, err := m.Join(strconv.Itoa(i), 0, &Vector{})
		if err != nil {
			b.Fatal(err)
		}
		members = append(members, x)
	}
	var own, others Vector
	n := uint32(0)
	for b.Loop() { // 50 workers changed at each of 8 gateways
		n++
		for i, x := range members {
			own.Reset()
			for k := range 50 {
				own.Add(uint64((i*50+k*7)%1000+1), Counts{Decode: n & 1023})
			}
			if err := x.Update(&own); err != nil {
				b.Fatal(err)
			}
		}
		for _, x := range members {
			if _, err := x.Take(&others); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// However reservations race with the reader, the last that is read is what there
// is.
func TestChangesLoseNothing(t *testing.T) {
	table := NewTable(&measure.Registry{})
	slots := table.Columns(view(3, Key{"a", 1}, Key{"b", 2}, Key{"c", 3})).Slots
	c := table.Changes()
	c.Open()
	var v Vector
	c.Whole(&v)
	known := map[uint64]Counts{}
	var writers sync.WaitGroup
	left := make([][]*Reservation, 4)
	for i := range left {
		writers.Go(func() {
			for k := range 3000 {
				r := slots[(i+k)%3].Reserve(Phase(k%2), Work{Prompt: 3, Context: 5})
				if r.FirstToken(); k%100 == 0 {
					left[i] = append(left[i], r)
				} else {
					r.Close()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-c.Ready():
		case <-done:
			running = false
		}
		c.Take(&v)
		apply(known, &v)
		c.Heard(1<<60, 2)
	}
	for _, s := range slots {
		if got, want := known[uint64(s.Key.Epoch)], s.own(); got != want || want.Decode != 40 {
			t.Errorf("%s: read %+v, is %+v", s.Key.ID, got, want)
		}
	}
}
