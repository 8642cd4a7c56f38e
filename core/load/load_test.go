package load

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
)

func view(index uint64, keys ...Key) *fleet.View {
	var workers []fleet.Worker
	for _, k := range keys {
		workers = append(workers, fleet.Worker{ID: k.ID, Epoch: k.Epoch, Models: []string{"m"}})
	}
	return fleet.NewView(index, workers)
}

// Any history of reservations leaves the counts a plain model has, and closing
// everything, twice, leaves zero.
func TestReservationsBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var registry measure.Registry
		table := NewTable(&registry)
		slot := table.Columns(view(1, Key{"a", 1})).Slots[0]
		type open struct {
			r       *Reservation
			phase   Phase
			prompt  unit.Tokens
			context unit.Tokens
		}
		var model []open
		pick := func(t *rapid.T) int {
			if len(model) == 0 {
				t.Skip("nothing open")
			}
			return rapid.IntRange(0, len(model)-1).Draw(t, "which")
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				p := Phase(rapid.IntRange(0, 1).Draw(t, "phase"))
				n := unit.Tokens(rapid.IntRange(0, 1000).Draw(t, "prompt"))
				model = append(model, open{slot.Reserve(p, Work{Prompt: n, Context: 2 * n}), p, n, 2 * n})
			},
			"first token": func(t *rapid.T) {
				i := pick(t)
				model[i].r.FirstToken()
				model[i].phase, model[i].prompt = Decode, 0
			},
			"close": func(t *rapid.T) {
				i := pick(t)
				model[i].r.Close()
				model[i].r.FirstToken()
				model[i].r.Close()
				model = append(model[:i], model[i+1:]...)
			},
			"": func(t *rapid.T) {
				var want [2]int
				var prompt, context unit.Tokens
				for _, o := range model {
					want[o.phase]++
					prompt += o.prompt
					context += o.context
				}
				if slot.Requests(Prefill) != want[0] || slot.Requests(Decode) != want[1] || slot.QueuedPrompt() != prompt || slot.Context() != context {
					t.Fatalf("%d %d %d %d, want %v %d %d", slot.Requests(Prefill), slot.Requests(Decode), slot.QueuedPrompt(), slot.Context(), want, prompt, context)
				}
			},
		})
		for _, o := range model {
			o.r.Close()
		}
		if table.InFlight() != 0 || slot.QueuedPrompt() != 0 {
			t.Fatalf("%d in flight, %d tokens after closing all", table.InFlight(), slot.QueuedPrompt())
		}
		for _, f := range registry.Snapshot() {
			for _, s := range f.Series {
				if s.Value != 0 {
					t.Fatalf("gauge %v = %v", s.Labels, s.Value)
				}
			}
		}
	})
}

func TestCloseAndFirstTokenRace(t *testing.T) {
	table := NewTable(&measure.Registry{})
	slot := table.Columns(view(1, Key{"a", 1})).Slots[0]
	for range 2000 {
		r := slot.Reserve(Prefill, Work{Prompt: 10})
		var wg sync.WaitGroup
		wg.Go(r.FirstToken)
		wg.Go(r.Close)
		wg.Wait()
		r.Close()
	}
	if slot.InFlight() != 0 || slot.Requests(Prefill) != 0 || slot.QueuedPrompt() != 0 {
		t.Errorf("%d %d %d", slot.Requests(Prefill), slot.Requests(Decode), slot.QueuedPrompt())
	}
}

func TestStateBelongsToTheIncarnation(t *testing.T) {
	table := NewTable(&measure.Registry{})
	now := time.Unix(100, 0)
	old := table.Columns(view(1, Key{"a", 1}))
	r := old.Slots[0].Reserve(Decode, Work{})
	old.Slots[0].Eject(now, Backoff{time.Second, time.Second})
	fresh := table.Columns(view(2, Key{"a", 2}))
	if fresh.Slots[0].InFlight() != 0 || fresh.Slots[0].PassedBy(now) {
		t.Error("a new incarnation inherited load or ejection")
	}
	if table.InFlight() != 1 {
		t.Error("the old incarnation's request was forgotten while in flight")
	}
	if again := table.Columns(old.View); again.Slots[0] != old.Slots[0] {
		t.Error("an older view lost its slot")
	}
	r.Close()
	table.Columns(view(3, Key{"a", 2}))
	if n := len(table.slots); n != 1 {
		t.Errorf("%d slots kept", n)
	}
}

// A worker's gauges go with its last incarnation, not before.
func TestGaugesOfAGoneWorker(t *testing.T) {
	var registry measure.Registry
	table := NewTable(&registry)
	shown := func() int {
		for _, f := range registry.Snapshot() {
			if f.Desc.Name == measure.WorkerInFlight.Name {
				return len(f.Series)
			}
		}
		return 0
	}
	late := table.Columns(view(1, Key{"a", 1})).Slots[0].Reserve(Prefill, Work{})
	table.Columns(view(2, Key{"a", 2}))
	table.Columns(view(3))
	if n := shown(); n != 2 {
		t.Errorf("%d series while a request of the first incarnation runs", n)
	}
	late.Close()
	table.Columns(view(4))
	if n := shown(); n != 0 {
		t.Errorf("%d series of a worker that is gone", n)
	}
}

func TestEjectionGrowsAndEnds(t *testing.T) {
	s := &Slot{}
	b := Backoff{First: 100 * time.Millisecond, Longest: 300 * time.Millisecond}
	now := time.Unix(100, 0)
	for _, ms := range []int{100, 200, 300, 300} {
		want := time.Duration(ms) * time.Millisecond
		if !s.Eject(now, b) || s.Eject(now, b) {
			t.Fatal("an ejection counts once")
		}
		if !s.PassedBy(now.Add(want-1)) || s.PassedBy(now.Add(want)) {
			t.Fatalf("not ejected for %v", want)
		}
		now = now.Add(want)
	}
	s.Reached()
	if s.Eject(now, b); s.PassedBy(now.Add(100 * time.Millisecond)) {
		t.Error("a success did not reset the backoff")
	}
}

func TestColumnsDoNotAllocateTwice(t *testing.T) {
	table := NewTable(&measure.Registry{})
	v := view(1, Key{"a", 1}, Key{"b", 2})
	table.Columns(v)
	if n := testing.AllocsPerRun(100, func() { table.Columns(v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A worker's own word counts the requests of others, and stays right while this
// gateway sends more: eight calls between two polls are seen at once.
func TestForeignRequests(t *testing.T) {
	s := NewTable(&measure.Registry{}).Columns(view(1, Key{"a", 1})).Slots[0]
	if s.Foreign() != 0 {
		t.Error("a worker that never spoke has foreign requests")
	}
	at := time.Unix(100, 0)
	own := s.Reserve(Prefill, Work{})
	s.Hear(at, 5)
	for range 8 {
		s.Reserve(Prefill, Work{})
	}
	if s.Foreign() != 4 || s.Foreign()+s.InFlight() != 13 {
		t.Errorf("%d foreign of %d", s.Foreign(), s.Foreign()+s.InFlight())
	}
	s.Hear(at, 99) // the same sample again
	own.Close()
	if s.Foreign() != 4 {
		t.Error("an old sample was heard twice")
	}
	s.Hear(at.Add(time.Second), 3) // the engine has not seen all of ours yet
	if s.Foreign() != 0 {
		t.Errorf("%d foreign requests", s.Foreign())
	}
	s.Hear(at.Add(2*time.Second), 50)
	s.Unheard()
	if s.Foreign() != 0 {
		t.Errorf("%d foreign requests of a worker that nobody hears", s.Foreign())
	}
}

// Views of another history begin with low indices. After Restart they count.
func TestRestart(t *testing.T) {
	table := NewTable(&measure.Registry{})
	old := view(900, Key{"a", 800})
	table.Columns(old)
	anew := view(5, Key{"a", 4})
	if table.Columns(anew); table.current.Load().View != old {
		t.Error("an older view of the same history counts")
	}
	table.Restart()
	if table.Columns(anew); table.current.Load().View != anew || len(table.slots) != 1 {
		t.Errorf("after a restart: %d slots", len(table.slots))
	}
}
