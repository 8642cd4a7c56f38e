package actuate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/traffic"
)

// quorum is a planner's state with some nodes, of which one leads or none.
type quorum struct {
	world   *world
	mu      sync.Mutex
	machine *planner.Machine
	index   uint64
	leader  int
}

func (q *quorum) propose(cmd planner.Command) (planner.Result, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	entry, err := planner.Encode(planner.RequestID{}, cmd)
	if err != nil {
		return planner.Result{}, err
	}
	q.index++
	return q.machine.Apply(q.index, entry)
}

// Plan and the others implement Source.
func (q *quorum) Plan() *scale.Plan {
	plan, _ := q.machine.Plan()
	return plan
}
func (q *quorum) Changed() <-chan struct{} { return q.machine.Changed() }
func (q *quorum) View() *fleet.View        { return q.world.view() }

// seat is one node of it.
type seat struct {
	*quorum
	node int
}

func (s seat) Propose(_ context.Context, cmd planner.Command) (planner.Result, error) {
	if rand.IntN(10) == 0 {
		return planner.Result{}, errors.New("no commit just now")
	}
	return s.propose(cmd)
}

func (s seat) Leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader == s.node
}

func (s seat) Plan() (*scale.Plan, uint64) { return s.machine.Plan() }

// whim wants anything.
type whim struct{ rng *rand.Rand }

func (whim) Name() string { return "whim" }

func (p whim) Tick(w *scale.Window, want []scale.Want) {
	for i := range want {
		switch p.rng.IntN(6) {
		case 0:
			want[i] = scale.Want{Keep: true}
		case 1:
			want[i] = scale.Want{Replicas: math.MaxUint32, Reason: "everything"}
		default:
			want[i] = scale.Want{Replicas: uint32(p.rng.IntN(12))}
		}
	}
	if p.rng.IntN(20) == 0 {
		time.Sleep(3 * time.Second) // longer than the interval
	}
}

// The budget bounds the processes that there are at every moment, whatever the policy
// wants, however slowly workers come and go, crash, and whoever leads.
func TestBudgetAtEveryMoment(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playBudget(t, seed) })
		})
	}
}

const playedBudget = 6

func playBudget(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(ProcessConfig{Starts: 3, DrainTime: 8 * time.Second})
	q := &quorum{world: w, machine: planner.New()}
	if _, err := q.propose(planner.SetFeatureLevel{Level: planner.MaxFeatureLevel}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for node := range 3 {
		s := lead.NewScaler(lead.ScaleConfig{
			Every: time.Second, Pools: []scale.Key{prefillKey, decodeKey},
			Limiter: scale.LimiterConfig{Budget: playedBudget, Hold: 2 * time.Second},
		}, lead.ScaleDuties{
			Planner: seat{q, node}, Policy: func() scale.Policy { return whim{rand.New(rand.NewPCG(seed, uint64(node)))} },
			Samples: func() *fleet.Samples { return nil }, Traffic: traffic.NewBook(),
			Clock: clock.Real{}, Registry: &measure.Registry{},
		})
		wg.Go(func() { s.Run(ctx) })
	}
	wg.Go(func() { Run(ctx, clock.Real{}, q, w.process) })
	due := map[fleet.WorkerID]time.Time{} // when something happens to it
	most := 0
	for range 3000 {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		alive := w.ids()
		most = max(most, len(alive))
		if len(alive) > playedBudget {
			t.Fatalf("%d processes: %v", len(alive), alive)
		}
		for _, id := range alive {
			play(w, id, due, rng)
		}
		if rng.IntN(60) == 0 {
			q.mu.Lock()
			q.leader = rng.IntN(4) // 3 is nobody
			q.mu.Unlock()
		}
	}
	if most < playedBudget {
		t.Errorf("the budget was never used: %d", most)
	}
	cancel()
	wg.Wait()
	w.finish(t)
}

// play lets a worker come up, drain, or crash, after a time.
func play(w *world, id fleet.WorkerID, due map[fleet.WorkerID]time.Time, rng *rand.Rand) {
	w.mu.Lock()
	child, registered := w.children[id], false
	if _, ok := w.fleet[id]; ok {
		registered = true
	}
	w.mu.Unlock()
	if child == nil {
		return
	}
	asked := false
	select {
	case <-child.asked:
		asked = true
	default:
	}
	if due[id].IsZero() {
		due[id] = time.Now().Add(time.Duration(rng.IntN(6000)) * time.Millisecond)
	}
	if time.Now().Before(due[id]) {
		return
	}
	delete(due, id)
	switch {
	case asked:
		w.end(id, nil)
	case !registered && rng.IntN(4) == 0:
		w.end(id, errors.New("cannot start"))
	case !registered:
		w.up(id)
	case rng.IntN(3) == 0: // a crash: the process is started again, and registers anew
		w.mu.Lock()
		delete(w.fleet, id)
		child.restarts++
		w.mu.Unlock()
	}
}
