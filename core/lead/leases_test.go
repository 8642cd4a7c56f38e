package lead

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
)

var start = time.Unix(1_000_000, 0)

func viewOf(index uint64, workers ...fleet.Worker) *fleet.View { return fleet.NewView(index, workers) }

func w(id string, epoch uint64) fleet.Worker {
	return fleet.Worker{ID: fleet.WorkerID(id), Epoch: fleet.Epoch(epoch), Role: fleet.RoleBoth, Models: []string{"m"}}
}

func TestExpiry(t *testing.T) {
	l := NewLeases(Config{TTL: 3 * time.Second, RenewEvery: time.Second, Grace: 10 * time.Second})
	view := viewOf(2, w("a", 1), w("b", 2))
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	var expired []planner.Command
	for s := 0.0; s <= 9; s += 0.25 {
		expired = append(expired, l.Step(at(s), view, true)...)
	}
	if len(expired) != 0 {
		t.Fatalf("expired within the grace of a new leader: %v", expired)
	}
	for s := 9.25; s <= 14; s += 0.25 {
		if v, _ := l.Renew(at(s), view, "a", 1, fleet.Stats{}); v != Held {
			t.Fatalf("renewal: %v", v)
		}
		expired = append(expired, l.Step(at(s), view, true)...)
		if len(expired) > 0 {
			if s <= 10 {
				t.Fatalf("expired at %v s", s)
			}
			break
		}
	}
	if diff := cmp.Diff([]planner.Command{planner.ExpireWorker{ID: "b", Epoch: 2}}, expired); diff != "" {
		t.Error(diff)
	}
}

// A registration is followed by its lease of one TTL, not by the grace.
func TestNewWorkerHasOneTTL(t *testing.T) {
	l := NewLeases(Config{TTL: 3 * time.Second})
	now := start
	l.Step(now, viewOf(0), true)
	view := viewOf(5, w("a", 5))
	l.Grant(now, "a", 5)
	var alive time.Duration
	for len(l.Step(now, view, true)) == 0 && alive < time.Minute {
		now = now.Add(250 * time.Millisecond)
		alive = now.Sub(start)
	}
	if alive < 3*time.Second || alive > 3500*time.Millisecond {
		t.Errorf("expired after %v, want 3 s", alive)
	}
}

func TestVerdicts(t *testing.T) {
	draining := w("d", 4)
	draining.Draining = true
	view := viewOf(6, w("a", 3), draining)
	late := start.Add(DefaultTTL + time.Second) // long after the first Step
	tests := []struct {
		name     string
		at       time.Time
		id       fleet.WorkerID
		epoch    fleet.Epoch
		want     Verdict
		draining bool
	}{
		{"a member", start, "a", 3, Held, false},
		{"a member that drains", start, "d", 4, Held, true},
		{"an older incarnation", start, "a", 2, Superseded, false},
		{"a worker that is gone", start, "x", 5, Unknown, false},
		{"an epoch that never was this id's", start, "a", 5, Unknown, false},
		{"a worker to hear of", start, "x", 7, NotYet, false},
		{"an incarnation to hear of", start, "a", 7, NotYet, false},
		{"a worker of a log that is lost", late, "x", 7, Unknown, false},
		{"an incarnation of a log that is lost", late, "a", 7, Unknown, false},
	}
	for _, tt := range tests {
		l := NewLeases(Config{})
		l.Step(start, view, true)
		l.Step(tt.at, view, true)
		if got, d := l.Renew(tt.at, view, tt.id, tt.epoch, fleet.Stats{}); got != tt.want || d != tt.draining {
			t.Errorf("%s: %v, %v", tt.name, got, d)
		}
		if n := len(l.leases); n != 2 {
			t.Errorf("%s: %d leases, of strangers too", tt.name, n)
		}
	}
}

// A node that does not lead answers, if it is asked, and keeps nothing.
func TestFollowerKeepsNothing(t *testing.T) {
	l := NewLeases(Config{})
	view := viewOf(1, w("a", 1))
	ask := func() {
		t.Helper()
		l.Grant(start, "b", 2)
		if v, _ := l.Renew(start, view, "a", 1, fleet.Stats{Running: fleet.Report(1)}); v != Held {
			t.Errorf("renewal: %v", v)
		}
		if v, _ := l.Renew(start.Add(time.Hour), view, "c", 9, fleet.Stats{}); v != NotYet {
			t.Errorf("a worker to hear of: %v", v)
		}
		if len(l.leases) != 0 || len(l.Samples().All()) != 0 {
			t.Errorf("%d leases, %d samples", len(l.leases), len(l.Samples().All()))
		}
	}
	ask()
	l.Step(start, view, false)
	ask()
	l.Step(start, view, true)
	l.Step(start, view, false)
	ask()
}

// Two nodes take turns in leading, worker by worker as workers are: who renews
// at the one that leads is never expired, and who does not is, in the end.
func TestFailoverExpiresNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []*Leases{NewLeases(Config{}), NewLeases(Config{})}
		view := viewOf(2, w("alive", 1), w("dead", 2))
		now, renewed, leader := start, start, 0
		var led time.Duration // by the present leader
		for range rapid.IntRange(10, 120).Draw(t, "quarters of a second") {
			if rapid.IntRange(0, 9).Draw(t, "fails over") == 0 {
				leader, led = 1-leader, 0
			}
			now = now.Add(250 * time.Millisecond)
			led += 250 * time.Millisecond
			if now.Sub(renewed) >= 2*time.Second || rapid.Bool().Draw(t, "renews") {
				renewed = now
				if v, _ := nodes[leader].Renew(now, view, "alive", 1, fleet.Stats{}); v != Held {
					t.Fatalf("renewal: %v", v)
				}
			}
			for i, l := range nodes {
				cmds := l.Step(now, view, i == leader)
				for _, cmd := range cmds {
					e := cmd.(planner.ExpireWorker)
					if i != leader || e.ID != "dead" || led <= DefaultGrace {
						t.Fatalf("node %d, leading for %v: %+v", i, led, e)
					}
				}
				if i == leader && led > DefaultGrace+time.Second && len(cmds) == 0 {
					t.Fatalf("leading for %v, and a dead worker is a member", led)
				}
			}
		}
	})
}

// A leader that was suspended must not expire those whose renewals wait in its
// socket buffers.
func TestStandstillExpiresNobody(t *testing.T) {
	l := NewLeases(Config{TTL: 3 * time.Second})
	view := viewOf(1, w("a", 1))
	now := start
	for range 100 {
		l.Renew(now, view, "a", 1, fleet.Stats{})
		l.Step(now, view, true)
		now = now.Add(250 * time.Millisecond)
	}
	now = now.Add(time.Hour)
	if cmds := l.Step(now, view, true); cmds != nil {
		t.Errorf("after an hour's standstill: %v", cmds)
	}
	now = now.Add(250 * time.Millisecond)
	if v, _ := l.Renew(now, view, "a", 1, fleet.Stats{}); v != Held {
		t.Errorf("renewal after the standstill: %v", v)
	}
}

func TestLossOfLeadershipForgets(t *testing.T) {
	l := NewLeases(Config{})
	view := viewOf(1, w("a", 1))
	l.Step(start, view, true)
	l.Renew(start, view, "a", 1, fleet.Stats{Running: fleet.Report(1)})
	if len(l.Samples().All()) != 1 {
		t.Fatal("no sample")
	}
	l.Step(start, view, false)
	if len(l.Samples().All()) != 0 {
		t.Error("samples of a former leader remain")
	}
	// Leading again much later is a new grace.
	if cmds := l.Step(start.Add(time.Hour), view, true); cmds != nil {
		t.Errorf("a new leader expired %v", cmds)
	}
}

func TestSamples(t *testing.T) {
	l := NewLeases(Config{})
	view := viewOf(3, w("a", 1), w("b", 3))
	stats := fleet.Stats{Running: fleet.Report(0), Waiting: fleet.Report(math.NaN())}
	l.Step(start, view, true)
	l.Renew(start.Add(time.Second), view, "b", 3, stats)
	first := l.Samples()
	s, ok := first.Find("b", 3)
	if !ok || !s.At.Equal(start.Add(time.Second)) || s.Stats.Running != fleet.Report(0) || !math.IsNaN(s.Stats.Waiting.Value) || s.Stats.KVBlocksFree.Known {
		t.Errorf("sample %+v, %v", s, ok)
	}
	if _, ok := first.Find("a", 1); ok {
		t.Error("a worker that never renewed has a sample")
	}
	if l.Samples() != first {
		t.Error("an unchanged set was built again")
	}
	l.Step(start.Add(2*time.Second), viewOf(7, w("a", 1), w("b", 7)), true)
	if _, ok := l.Samples().Find("b", 3); ok {
		t.Error("the sample of a superseded incarnation remains")
	}
}

// Against a plain model: who renewed within the TTL is never expired, who did
// not is expired in the end, and the table is no larger than the fleet.
func TestLeasesMatchModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ttl = 3 * time.Second
		l := NewLeases(Config{TTL: ttl, Grace: 10 * time.Second})
		now, index := start, uint64(0)
		members := map[fleet.WorkerID]fleet.Epoch{}
		last := map[fleet.WorkerID]time.Time{} // last word of the present incarnation
		view := viewOf(0)
		publish := func() {
			var list []fleet.Worker
			for id, e := range members {
				list = append(list, w(string(id), uint64(e)))
			}
			view = viewOf(index, list...)
		}
		step := func(t *rapid.T) {
			for _, cmd := range l.Step(now, view, true) {
				e := cmd.(planner.ExpireWorker)
				if members[e.ID] != e.Epoch {
					t.Fatalf("expired %+v, a member is epoch %d", e, members[e.ID])
				}
				if silent := now.Sub(last[e.ID]); silent <= ttl {
					t.Fatalf("%q expired after %v of silence", e.ID, silent)
				}
				index++
				delete(members, e.ID)
			}
			publish()
		}
		step(t)
		ids := rapid.SampledFrom([]fleet.WorkerID{"a", "b", "c", "d", "e", "f"})
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				index++
				members[id], last[id] = fleet.Epoch(index), now
				publish()
				l.Grant(now, id, fleet.Epoch(index))
			},
			"renew": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				v, _ := l.Renew(now, view, id, members[id], fleet.Stats{})
				if _, member := members[id]; member != (v == Held) {
					t.Fatalf("renewal of %q: %v", id, v)
				}
				last[id] = now
			},
			"tick": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 1400).Draw(t, "ms")) * time.Millisecond)
				step(t)
			},
			"silence": func(t *rapid.T) {
				for range 50 { // longer than any grace
					now = now.Add(time.Second)
					step(t)
				}
				if len(members) != 0 {
					t.Fatalf("still members after 50 s of silence: %v", members)
				}
			},
			"": func(t *rapid.T) {
				if len(l.leases) > len(members)+6 {
					t.Fatalf("%d leases of %d members", len(l.leases), len(members))
				}
				if !slices.IsSortedFunc(l.Samples().All(), func(a, b fleet.Sample) int {
					if a.ID < b.ID {
						return -1
					}
					return 1
				}) {
					t.Fatal("samples are not sorted")
				}
			},
		})
	})
}

// A leader that is cut off from the fleet must not dissolve it.
func TestMassSilenceIsHeldBack(t *testing.T) {
	const n = 40
	l := NewLeases(Config{TTL: 3 * time.Second, Grace: 10 * time.Second})
	var list []fleet.Worker
	for i := range n {
		list = append(list, w(string(rune('A'+i)), uint64(i+1)))
	}
	view := viewOf(n, list...)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	// Renewals each second, spread over it; from 20 s on, only those of alive.
	run := func(alive, until int) (first, count int) {
		l = NewLeases(l.cfg)
		for ms := 0; ms <= until; ms += 25 {
			for i := range list {
				if ms%1000 == i*25 && (ms < 20_000 || i < alive) {
					l.Renew(at(ms), view, list[i].ID, list[i].Epoch, fleet.Stats{})
				}
			}
			if ms%250 != 0 {
				continue
			}
			if cmds := l.Step(at(ms), view, true); len(cmds) > 0 && count == 0 {
				first, count = ms, len(cmds)
			}
		}
		return first, count
	}
	if first, count := run(0, 30_000); count != 0 || !l.Holding() {
		t.Errorf("%d workers expired at %d ms while all are silent; holding %v", count, first, l.Holding())
	}
	if first, _ := run(0, 60_000); first < 32_000 || first > 34_000 {
		t.Errorf("all silent: first expiry at %d ms, want TTL and grace after 19 to 20 s", first)
	}
	if first, _ := run(n*3/4, 60_000); first < 22_000 || first > 23_500 || l.Holding() {
		t.Errorf("a quarter silent: first expiry at %d ms, want a TTL after 19 to 20 s", first)
	}
}
