package quorum

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/measure"
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
	// CommitLeaderMS is the part of a commit's time that the leader takes, on average:
	// the rest is the way there and back.
	CommitLeaderMS float64 `json:"commit_leader_mean_ms"`
	// EtcdRatio is CommitP50MS over EtcdP50MS.
	EtcdRatio float64 `json:"commit_over_etcd,omitempty"`
	// EtcdTLSP50MS is etcd's commit where its members and clients speak TLS, as ours
	// always do, and EtcdTLSRatio ours beside it over it.
	EtcdTLSP50MS float64 `json:"etcd_tls_commit_p50_ms,omitempty"`
	EtcdTLSRatio float64 `json:"commit_over_etcd_tls,omitempty"`
	Lost         int     `json:"lost_writes"` // acknowledged, and gone after all
	Events       *Events `json:"events,omitempty"`
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

// commits takes the time of commits, one in flight, beside etcd in clear text and
// under TLS.
func (r *run) commits(ctx context.Context) error {
	r.say("commits, one in flight")
	spent, counted, err := r.leaderCommits(ctx)
	if err != nil {
		return err
	}
	ours, theirs, err := r.besideEtcd(ctx, false)
	if err != nil {
		return err
	}
	now, count, err := r.leaderCommits(ctx)
	if err != nil {
		return err
	}
	r.result.CommitP50MS, r.result.CommitP99MS = ours.median(), ours.quantile(0.99)
	r.result.CommitLeaderMS = 1000 * (now - spent) / max(count-counted, 1)
	if r.Etcd == "" {
		return nil
	}
	r.result.EtcdP50MS, r.result.EtcdP99MS = theirs.median(), theirs.quantile(0.99)
	r.result.EtcdRatio = ours.median() / theirs.median()
	ours, theirs, err = r.besideEtcd(ctx, true)
	if err != nil {
		return err
	}
	r.result.EtcdTLSP50MS, r.result.EtcdTLSRatio = theirs.median(), ours.median()/theirs.median()
	return nil
}

// besideEtcd takes the time of commits in turns with etcd's, if there is one, so that
// both see the disk in the same moods.
func (r *run) besideEtcd(ctx context.Context, secure bool) (ours, theirs durations, err error) {
	var other *etcds
	if r.Etcd != "" {
		dir, err := os.MkdirTemp(r.dir, "etcd-")
		if err != nil {
			return nil, nil, err
		}
		if other, err = startEtcd(ctx, r.Etcd, dir, secure); err != nil {
			return nil, nil, err
		}
		defer other.stop()
	}
	const turns = 5
	for turn := range turns {
		some, err := timed(ctx, r.Commits/turns, func(i int) error {
			return r.gateway.write(ctx, fmt.Sprintf("bench/commit-%d", i%16), commitBytes)
		})
		if err != nil {
			return nil, nil, err
		}
		ours = append(ours, some...)
		if other == nil {
			continue
		}
		if some, err = other.commits(ctx, r.Commits/turns, commitBytes, turn == 0); err != nil {
			return nil, nil, err
		}
		theirs = append(theirs, some...)
	}
	return ours, theirs, nil
}

// leaderCommits is the seconds that the leader's commits have taken, and how many.
func (r *run) leaderCommits(ctx context.Context) (seconds, count float64, err error) {
	id, _ := r.gateway.Leader()
	leader, err := r.cluster.Find(id)
	if err != nil {
		return 0, 0, err
	}
	_, text, err := leader.Get(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	value := func(suffix string) float64 {
		_, rest, _ := strings.Cut(text, measure.RaftCommit.Name+suffix+`{group="core"} `)
		number, _, _ := strings.Cut(rest, "\n")
		v, fault := strconv.ParseFloat(number, 64)
		if fault != nil {
			err = fmt.Errorf("quorum: %s tells no time of commits: %w", id, fault)
		}
		return v
	}
	seconds, count = value("_sum"), value("_count")
	return seconds, count, err
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
