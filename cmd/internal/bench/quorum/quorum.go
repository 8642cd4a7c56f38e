package quorum

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// Options say what is measured. The zero value is made useful by defaults.
type Options struct {
	Program string // this program
	Dir     string // where the nodes keep their files; a folder of the disk to be measured
	Trials  int    // leaders killed, and handovers; 0 means 20
	Commits int    // commits one after the other; 0 means 2,000
	Etcd    string // etcd's program, measured beside if given

	// EventSeconds is how long KV events are replicated; 0 leaves it out.
	EventSeconds int
	Workers      int // that have events; 0 means 1,000
	EventsPerS   int // of one worker; 0 means 150
}

// Result is what was measured.
type Result struct {
	Trials        int     `json:"trials"`
	FailoverP50MS float64 `json:"failover_p50_ms"` // kill -9 of the leader to the first write that succeeds
	FailoverMaxMS float64 `json:"failover_max_ms"`
	TransferP50MS float64 `json:"transfer_p50_ms"` // of a handover: the longest wait of a write meanwhile
	TransferMaxMS float64 `json:"transfer_max_ms"`
	CommitBytes   int     `json:"commit_bytes"`
	CommitP50MS   float64 `json:"commit_p50_ms"` // one in flight
	CommitP99MS   float64 `json:"commit_p99_ms"`
	EtcdP50MS     float64 `json:"etcd_commit_p50_ms,omitempty"`
	EtcdP99MS     float64 `json:"etcd_commit_p99_ms,omitempty"`
	// EtcdRatio is CommitP50MS over EtcdP50MS.
	EtcdRatio float64 `json:"commit_over_etcd,omitempty"`
	Lost      int     `json:"lost_writes"` // acknowledged, and gone after all
	Events    *Events `json:"events,omitempty"`
}

// voters is how many planners are measured.
const voters = 3

// commitBytes is the size of a value written.
const commitBytes = 100

func (o Options) withDefaults() Options {
	if o.Trials <= 0 {
		o.Trials = 20
	}
	if o.Commits <= 0 {
		o.Commits = 2000
	}
	if o.Workers <= 0 {
		o.Workers = 1000
	}
	if o.EventsPerS <= 0 {
		o.EventsPerS = 150
	}
	return o
}

// Run measures. say is told what is under way.
func Run(ctx context.Context, o Options, say func(string)) (r Result, err error) {
	o = o.withDefaults()
	dir, err := os.MkdirTemp(o.Dir, "yardmaster-raft-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := planners.New(o.Program, dir, voters)
	if err != nil {
		return r, err
	}
	for _, n := range cluster.Nodes {
		n.Set("PLANNER_LEASE_TTL", "1h") // workers are made up and renew nothing
	}
	defer cluster.Stop()
	say("starting three planners")
	if err := cluster.Start(ctx); err != nil {
		return r, err
	}
	m, err := cluster.Join(ctx, "bench")
	if err != nil {
		return r, err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), planners.StartTime)
		defer cancel()
		err = errors.Join(err, m.Leave(stop))
	}()
	run := &run{Options: o, dir: dir, cluster: cluster, gateway: gateway{m}, say: say, result: Result{Trials: o.Trials, CommitBytes: commitBytes}}
	err = run.all(ctx)
	return run.result, err
}

// run is one measurement.
type run struct {
	Options
	dir     string
	cluster *planners.Cluster
	gateway gateway
	say     func(string)
	result  Result
}

func (r *run) all(ctx context.Context) error {
	steps := []func(context.Context) error{r.commits, r.transfers, r.failovers}
	if r.EventSeconds > 0 {
		steps = append(steps, r.events)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// commits takes the time of commits, one in flight, in turns with etcd's, so
// that both see the disk in the same moods.
func (r *run) commits(ctx context.Context) error {
	r.say("commits, one in flight")
	var other *etcds
	if r.Etcd != "" {
		var err error
		if other, err = startEtcd(ctx, r.Etcd, r.dir); err != nil {
			return err
		}
		defer other.stop()
	}
	const turns = 5
	var ours, theirs durations
	for turn := range turns {
		some, err := timed(ctx, r.Commits/turns, func(i int) error {
			return r.gateway.write(ctx, fmt.Sprintf("bench/commit-%d", i%16), commitBytes)
		})
		if err != nil {
			return err
		}
		ours = append(ours, some...)
		if other == nil {
			continue
		}
		if some, err = other.commits(ctx, r.Commits/turns, commitBytes, turn == 0); err != nil {
			return err
		}
		theirs = append(theirs, some...)
	}
	r.result.CommitP50MS, r.result.CommitP99MS = ours.median(), ours.quantile(0.99)
	if other != nil {
		r.result.EtcdP50MS, r.result.EtcdP99MS = theirs.median(), theirs.quantile(0.99)
		r.result.EtcdRatio = r.result.CommitP50MS / r.result.EtcdP50MS
	}
	return nil
}

// transfers hands leadership over again and again and takes the longest that a
// write had to wait meanwhile.
func (r *run) transfers(ctx context.Context) error {
	var waits durations
	for i := range r.Trials {
		r.say(fmt.Sprintf("handover %d of %d", i+1, r.Trials))
		load := r.startLoad(ctx)
		err := r.pause(ctx, 300*time.Millisecond)
		if err == nil {
			load.reset()
			err = r.gateway.Transfer(ctx, "")
		}
		if err == nil {
			err = r.pause(ctx, 300*time.Millisecond)
		}
		if err = errors.Join(err, load.stop()); err != nil {
			return err
		}
		waits = append(waits, load.longest)
	}
	r.result.TransferP50MS, r.result.TransferMaxMS = waits.median(), waits.longest()
	return nil
}

// failovers kills the leader again and again under load and takes the time until
// a write that began after it succeeds.
func (r *run) failovers(ctx context.Context) error {
	var waits durations
	for i := range r.Trials {
		r.say(fmt.Sprintf("failover %d of %d", i+1, r.Trials))
		wait, err := r.failover(ctx)
		if err != nil {
			return fmt.Errorf("failover %d: %w", i+1, err)
		}
		waits = append(waits, wait)
	}
	r.result.FailoverP50MS, r.result.FailoverMaxMS = waits.median(), waits.longest()
	return nil
}

func (r *run) failover(ctx context.Context) (wait time.Duration, err error) {
	load := r.startLoad(ctx)
	defer func() {
		lost, fault := 0, load.stop()
		if fault == nil {
			lost, fault = r.gateway.lost(ctx, load.acked)
		}
		r.result.Lost += lost
		err = errors.Join(err, fault)
	}()
	if err := r.pause(ctx, 500*time.Millisecond); err != nil {
		return 0, err
	}
	id, _ := r.gateway.Leader()
	leader, err := r.cluster.Find(id)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	leader.Kill()
	if err := r.gateway.write(ctx, "bench/failover", commitBytes); err != nil {
		return 0, err
	}
	wait = time.Since(begin)
	if err := leader.Start(ctx); err != nil {
		return 0, err
	}
	if err := leader.Ready(ctx); err != nil {
		return 0, err
	}
	// The next trial is of a cluster at rest.
	return wait, r.pause(ctx, time.Second)
}

func (r *run) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// load is writers at work.
type load struct {
	cancel context.CancelFunc
	task   sync.WaitGroup

	mu      sync.Mutex
	longest time.Duration     // of a write, since reset
	acked   map[string]uint64 // the version last acknowledged, by key
	fault   error
}

// writers is how many writes the load has in flight.
const writers = 8

func (r *run) startLoad(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel, acked: map[string]uint64{}}
	for w := range writers {
		l.task.Go(func() { l.work(ctx, r.gateway, fmt.Sprintf("bench/load-%d", w)) })
	}
	return l
}

// work writes until ctx ends.
func (l *load) work(ctx context.Context, g gateway, key string) {
	for ctx.Err() == nil {
		begin := time.Now()
		version, err := g.put(context.WithoutCancel(ctx), key, commitBytes)
		took := time.Since(begin)
		l.mu.Lock()
		if err != nil {
			l.fault = err
		} else {
			l.longest, l.acked[key] = max(l.longest, took), version
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (l *load) reset() {
	l.mu.Lock()
	l.longest = 0
	l.mu.Unlock()
}

// stop ends the load. An error is a write that failed for good.
func (l *load) stop() error {
	l.cancel()
	l.task.Wait()
	return l.fault
}
