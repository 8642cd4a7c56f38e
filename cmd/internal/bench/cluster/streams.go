package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
)

// Streams is what clients saw while planners were killed.
type Streams struct {
	AtOnce        int     `json:"streams_at_once"`
	Whole         int     `json:"streams_whole"` // with their end marker and every token
	Failed        int     `json:"streams_failed"`
	Tokens        int64   `json:"tokens"`
	LongestGapMS  float64 `json:"longest_gap_ms"` // between two tokens of a stream
	RequestsOK    int     `json:"requests_ok"`
	RequestsFail  int     `json:"requests_failed"`
	FailoverMS    float64 `json:"failover_ms"`     // the leader is killed until another leads both groups
	RestartedMS   float64 `json:"restarted_ms"`    // the killed leader is started until it is ready
	OutageS       float64 `json:"outage_s"`        // without any planner
	ReturnMS      float64 `json:"return_ms"`       // planners are started again until they lead
	ReturnReadyMS float64 `json:"return_ready_ms"` // and until all are ready
	// A worker that registers, and one that dies, after the planners' return:
	// until every gateway knows. The latter takes a lease, 3 s, and more while a leader
	// is new.
	NewWorkerMS  float64  `json:"new_worker_ms"`
	DeadWorkerMS float64  `json:"dead_worker_ms"`
	Phases       []Phase  `json:"phases"`
	Errors       []string `json:"errors,omitempty"` // the first few
}

// Phase is what clients saw between two events. A request belongs to the phase
// in which it began, a gap to the one in which it ended.
type Phase struct {
	Name          string  `json:"name"`
	Requests      int     `json:"requests"`
	Failed        int     `json:"failed"`
	P50MS         float64 `json:"p50_ms"`
	P99MS         float64 `json:"p99_ms"`
	MaxMS         float64 `json:"max_ms"`
	LongestGapMS  float64 `json:"longest_gap_ms"`
	StreamsFailed int     `json:"streams_failed"`
}

const (
	streamWorkers  = 4
	streamGateways = 2
	// shortTokens is what a new request generates.
	shortTokens = 4
	// maxInFlight bounds the new requests that wait for their answers.
	maxInFlight = 4096
	// requestTime bounds a request, streamTime a stream beyond its tokens' time.
	requestTime = 2 * time.Minute
	streamTime  = 2 * time.Minute
	maxErrors   = 8
)

func (b *bench) streams(ctx context.Context) error {
	s := shape{gateways: streamGateways, workers: streamWorkers, engine: engine{kvBlocks: 65536, token: b.TokenEvery, streamed: true, events: true}}
	b.say("streams: starting three planners, two gateways, four workers")
	return b.with(ctx, s, b.outages)
}

// outages lets clients work while planners come and go.
func (b *bench) outages(ctx context.Context, f *fleet) error {
	r := &Streams{AtOnce: b.Streams, OutageS: b.Outage.Seconds()}
	w := newWatch(r)
	load := b.startLoad(ctx, f, w)
	err := b.events(ctx, f, w, r)
	b.say("streams: waiting for those that run")
	load()
	w.sum()
	if err != nil {
		return errors.Join(err, w.fault())
	}
	b.result.Streams = r
	b.bar(most("streams that failed", float64(r.Failed), 0), most("new requests that failed", float64(r.RequestsFail), 0))
	return nil
}

// events is what happens while the clients work.
func (b *bench) events(ctx context.Context, f *fleet, w *watch, r *Streams) error {
	w.phase("at rest")
	b.say(fmt.Sprintf("streams: %d at once and %d new requests a second", b.Streams, b.RequestsPerS))
	if err := rig.Pause(ctx, b.Rest); err != nil {
		return err
	}
	steps := []func(context.Context, *fleet, *watch, *Streams) error{b.killLeader, b.killPlanners}
	if !b.SameWorkers {
		steps = append(steps, b.lateWorker)
	}
	for _, step := range steps {
		if err := step(ctx, f, w, r); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) killLeader(ctx context.Context, f *fleet, w *watch, r *Streams) error {
	leader, _, err := f.WaitLeaders(ctx)
	if err != nil {
		return err
	}
	b.say("streams: killing " + leader.ID + ", which leads")
	w.phase("leader killed")
	begin := time.Now()
	leader.Kill()
	if _, _, err := f.WaitLeaders(ctx); err != nil {
		return err
	}
	r.FailoverMS = milliseconds(time.Since(begin))
	if err := rig.Pause(ctx, b.Rest); err != nil {
		return err
	}
	w.phase("leader started again")
	begin = time.Now()
	if err := rig.StartAll(ctx, leader); err != nil {
		return err
	}
	r.RestartedMS = milliseconds(time.Since(begin))
	return rig.Pause(ctx, b.Rest)
}

func (b *bench) killPlanners(ctx context.Context, f *fleet, w *watch, r *Streams) error {
	b.say(fmt.Sprintf("streams: killing all planners for %v", b.Outage))
	w.phase("no planners")
	f.Planners.Stop()
	if err := rig.Pause(ctx, b.Outage); err != nil {
		return err
	}
	w.phase("planners started again")
	begin := time.Now()
	for _, p := range f.Planners.Nodes {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	if _, _, err := f.WaitLeaders(ctx); err != nil {
		return err
	}
	r.ReturnMS = milliseconds(time.Since(begin))
	if err := f.Planners.Ready(ctx); err != nil {
		return err
	}
	r.ReturnReadyMS = milliseconds(time.Since(begin))
	return rig.Pause(ctx, b.Rest)
}

// lateWorker looks whether gateways hear again of a worker that comes, and of
// one that dies.
func (b *bench) lateWorker(ctx context.Context, f *fleet, _ *watch, r *Streams) error {
	b.say("streams: a worker comes and dies")
	late, err := f.AddWorker("worker-late")
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := late.Start(ctx); err != nil {
		return err
	}
	if err := f.Knows(ctx, late.ID, true); err != nil {
		return err
	}
	r.NewWorkerMS = milliseconds(time.Since(begin))
	begin = time.Now()
	late.Kill()
	if err := f.Knows(ctx, late.ID, false); err != nil {
		return err
	}
	r.DeadWorkerMS = milliseconds(time.Since(begin))
	return nil
}

// startLoad starts the clients. The function it returns lets what has begun come
// to its end, and waits for it.
func (b *bench) startLoad(ctx context.Context, f *fleet, w *watch) (end func()) {
	var task sync.WaitGroup
	done := make(chan struct{})
	for i := range b.Streams {
		task.Go(func() {
			// They begin over the time of a token, not all in one moment.
			_ = rig.Pause(ctx, b.TokenEvery*time.Duration(i)/time.Duration(b.Streams))
			for n := 0; !isClosed(done) && ctx.Err() == nil; n++ {
				b.stream(ctx, f.clients[i%len(f.clients)], w, uint64(i)<<32|uint64(n))
			}
		})
	}
	task.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(b.RequestsPerS))
		defer tick.Stop()
		slots := make(chan struct{}, maxInFlight)
		for n := uint64(0); ; n++ {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			select {
			case slots <- struct{}{}:
			case <-done:
				return
			}
			task.Go(func() {
				defer func() { <-slots }()
				b.short(ctx, f.clients[n%uint64(len(f.clients))], w, n)
			})
		}
	})
	return func() {
		close(done)
		task.Wait()
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// stream follows one stream to its end.
func (b *bench) stream(ctx context.Context, c *client, w *watch, key uint64) {
	ctx, cancel := context.WithTimeout(ctx, streamTime+2*b.TokenEvery*time.Duration(b.StreamTokens))
	defer cancel()
	var last time.Time
	err := c.follow(ctx, request{prompt: piece(kindOwn, key, 64), tokens: b.StreamTokens}, func(tokens int) {
		now := time.Now()
		gap := time.Duration(0)
		if !last.IsZero() {
			gap = now.Sub(last)
		}
		last = now
		w.token(tokens, gap)
	})
	w.streamed(err)
}

// short sends one new request.
func (b *bench) short(ctx context.Context, c *client, w *watch, key uint64) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	phase, begin := w.now(), time.Now()
	_, err := c.ask(ctx, request{prompt: piece(kindShort, key, 64), tokens: shortTokens})
	w.asked(phase, time.Since(begin), err)
}
