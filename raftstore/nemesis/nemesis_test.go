package nemesis

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long says that there is time.
func long() bool { return os.Getenv("YARDMASTER_SIM") != "" }

// seedOf is the run's seed, told or by chance.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64N(1 << 32)
	if told := os.Getenv("YARDMASTER_SEED"); told != "" {
		n, err := strconv.ParseUint(told, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("YARDMASTER_SEED=%d", seed)
	return seed
}

// run is a cluster, who uses it, and what happens to it.
type run struct {
	planners, gateways int
	length             time.Duration
	actions            []action // drawn from
	each               bool     // do each action once, in an order by chance, whatever length says
}

const (
	clientCount = 6
	workerCount = 4
)

func (r run) play(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	y := newYard(t, seed)
	defer y.close(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	y.found(ctx, r.planners, r.gateways)

	watching, blind := context.WithCancel(ctx)
	var eyes sync.WaitGroup
	defer eyes.Wait()
	defer blind()
	j := newJudge(y)
	eyes.Go(func() { j.run(watching) })

	using, enough := context.WithCancel(ctx)
	defer enough()
	var users sync.WaitGroup
	c := &clients{yard: y}
	for i := range clientCount {
		own := rand.New(rand.NewPCG(seed, uint64(100+i)))
		users.Go(func() { c.run(using, i, own) })
	}
	var told atomic.Uint64
	var workers []*worker
	for i := range workerCount {
		w := &worker{yard: y, id: workerID(i), rng: rand.New(rand.NewPCG(seed, uint64(200+i))), told: &told}
		workers = append(workers, w)
		users.Go(func() { w.run(using) })
	}
	n := &nemesis{yard: y, rng: rng, long: long(), acks: c.acks.Load}
	begin := time.Now()
	n.say = func(format string, args ...any) {
		t.Logf("%6.2f s, %5d done: "+format, append([]any{time.Since(begin).Seconds(), c.acks.Load()}, args...)...)
	}
	r.torment(ctx, n)
	n.say("it is over")
	enough()
	users.Wait()
	r.verdict(ctx, n, j, c, workers)
	stats := c.log.Stats()
	t.Logf("%d objects, %d operations, %d of unknown outcome, %d frames, %d digests", stats.Objects, stats.Operations, stats.Unknown, told.Load(), j.compared())
}

func (r run) torment(ctx context.Context, n *nemesis) {
	order := n.rng.Perm(len(r.actions))
	begin := time.Now()
	for i := 0; ctx.Err() == nil && !n.yard.t.Failed(); i++ {
		if r.each && i == len(order) || !r.each && time.Since(begin) > r.length {
			break
		}
		if i > 0 && i%len(order) == 0 {
			order = n.rng.Perm(len(r.actions))
		}
		n.act(ctx, r.actions[order[i%len(order)]])
		n.while(ctx)
	}
}

// verdict judges a cluster that is healed and at rest.
func (r run) verdict(ctx context.Context, n *nemesis, j *judge, c *clients, workers []*worker) {
	list := j.yard.all()
	n.heal(ctx) // whoever stopped since
	j.yard.ready(ctx, list)
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			if !w.settle(ctx) {
				j.yard.t.Errorf("%s cannot tell what it holds within %v", w.id, patience)
			}
		})
	}
	all.Wait()
	c.readAll(ctx, list)
	j.equal(ctx)
	j.caches(workers)
	j.answers(&c.log, 20*time.Second)
}

// TestNemesis is the run of every day: a few things that happen.
func TestNemesis(t *testing.T) {
	seed := seedOf(t)
	run{planners: 3, gateways: 2, length: 5 * time.Second, actions: actions}.play(t, seed)
}

// TestNemesisThreePlanners and the next are the long runs.
func TestNemesisThreePlanners(t *testing.T) { longRun(t, 3) }

func TestNemesisFivePlanners(t *testing.T) { longRun(t, 5) }

func longRun(t *testing.T, planners int) {
	if !long() {
		t.Skip("a long run: make sim")
	}
	seed := seedOf(t)
	t.Run("each", func(t *testing.T) {
		run{planners: planners, gateways: 2, actions: actions, each: true}.play(t, seed)
	})
	t.Run("drawn", func(t *testing.T) {
		run{planners: planners, gateways: 2, actions: actions, length: length(t)}.play(t, seed+1)
	})
}

// length is how long a long run lasts, 60 s unless told.
func length(t *testing.T) time.Duration {
	t.Helper()
	told := os.Getenv("YARDMASTER_SIM_TIME")
	if told == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(told)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
