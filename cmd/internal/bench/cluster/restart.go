package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// Restart is how much of prompts with common beginnings was found in the workers'
// caches before and after nodes were killed and started again.
type Restart struct {
	Groups int     `json:"groups"`
	Warm   float64 `json:"warm_cached_share"`
	Best   float64 `json:"best_cached_share"` // all of the common beginnings
	// Blind is the warm share that workers chosen by chance would have given: a
	// group was served by so many of them when the first node was killed, over all.
	Blind float64 `json:"blind_cached_share"`
	Cases []Case  `json:"cases"`
}

// Case is one way of dying.
type Case struct {
	Killed      string  `json:"killed"`
	ReadyMS     float64 `json:"ready_ms"` // started until ready; of several the longest
	CachedShare float64 `json:"cached_share"`
	OfWarm      float64 `json:"of_warm"`
	Failed      int     `json:"failed"` // requests of the pass afterwards
}

const (
	groupTokens = 2048
	ownTokens   = 128
	groupOutput = 4
	// passClients is how many requests of a pass are under way at once.
	passClients = 8
)

func (b *bench) restart(ctx context.Context) error {
	b.say("restart: starting three planners, two gateways, four workers")
	s := shape{gateways: 2, workers: prefixWorkers, engine: engine{
		kvBlocks: 1 << 15, timing: preset, speed: prefillSpeed, token: 5 * time.Millisecond, events: true,
	}}
	return b.with(ctx, s, func(ctx context.Context, f *fleet) error {
		r, err := b.restarts(ctx, f)
		b.result.Restart = r
		return err
	})
}

// restarts warms the workers up, kills one thing after the other, and looks each
// time what is still found, at once after it is ready.
func (b *bench) restarts(ctx context.Context, f *fleet) (*Restart, error) {
	r := &Restart{Groups: b.Groups, Best: float64(groupTokens) / (groupTokens + ownTokens)}
	p := &passes{bench: b, fleet: f, served: map[service]bool{}}
	b.say("restart: warming up")
	for range 2 {
		if _, err := p.run(ctx, f.clients, max(b.PerPass, b.Groups)); err != nil {
			return r, err
		}
	}
	warm, err := p.run(ctx, f.clients, b.PerPass)
	if err != nil {
		return r, err
	}
	r.Warm, r.Blind = warm.share(), r.Best*p.held()
	for _, c := range p.cases() {
		b.say("restart: killing " + c.what)
		one, err := p.after(ctx, c, r.Warm)
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.what, err)
		}
		r.Cases = append(r.Cases, one)
		b.bar(least("cached share after a kill over the warm one: "+c.what, one.OfWarm, 0.99),
			most("requests that failed after a kill: "+c.what, float64(one.Failed), 0))
	}
	return r, nil
}

// passes sends requests to the groups, each time with other own parts.
type passes struct {
	*bench
	fleet *fleet
	next  uint64 // own part

	mu     sync.Mutex
	served map[service]bool
}

// service is a group that a worker has served.
type service struct {
	group  int
	worker string
}

// held is the share of workers, of all, that have served a group; the mean of all
// groups.
func (p *passes) held() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(len(p.served)) / float64(p.Groups*len(p.fleet.Workers))
}

// run sends n requests, over all groups in turn, to the gateways in turn, and
// waits until all have heard of what the workers hold now.
func (p *passes) run(ctx context.Context, to []*client, n int) (*tally, error) {
	t := &tally{}
	slots := make(chan struct{}, passClients)
	var task sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		p.next++
		own := p.next
		task.Go(func() {
			defer func() { <-slots }()
			group := i % p.Groups
			a, ok := t.ask(ctx, to[i/p.Groups%len(to)], request{
				prompt: piece(kindGroup, uint64(group), groupTokens) + piece(kindOwn, own, ownTokens), tokens: groupOutput,
			})
			if ok {
				p.mu.Lock()
				p.served[service{group, a.worker}] = true
				p.mu.Unlock()
			}
		})
	}
	task.Wait()
	if t.asked == 0 {
		return t, fmt.Errorf("%d requests failed: %w", t.failed, t.fault)
	}
	return t, rig.Pause(ctx, p.Settle)
}

// death is a way of dying.
type death struct {
	what string
	// kill ends it and starts it again, and says who is asked afterwards and how
	// long it took to be ready.
	kill func(context.Context) (ready time.Duration, to []*client, err error)
}

func (p *passes) cases() []death {
	f := p.fleet
	planner := func(choose func(core, prefix *planners.Node) *planners.Node) func(context.Context) (time.Duration, []*client, error) {
		return func(ctx context.Context) (time.Duration, []*client, error) {
			core, prefix, err := f.WaitLeaders(ctx)
			if err != nil {
				return 0, nil, err
			}
			ready, err := again(ctx, choose(core, prefix))
			return ready, f.clients, err
		}
	}
	return []death{
		{"a gateway, which then is asked", func(ctx context.Context) (time.Duration, []*client, error) {
			ready, err := again(ctx, f.Gateways[0])
			return ready, f.clients[:1], err
		}},
		{"the leader of core", planner(func(core, _ *planners.Node) *planners.Node { return core })},
		{"the leader of prefix", planner(func(_, prefix *planners.Node) *planners.Node { return prefix })},
		{"a follower", planner(func(core, prefix *planners.Node) *planners.Node {
			for _, n := range f.Planners.Nodes {
				if n != core && n != prefix {
					return n
				}
			}
			return core // cannot be: there are three
		})},
		{"the planners, one after the other", func(ctx context.Context) (longest time.Duration, to []*client, err error) {
			for _, n := range f.Planners.Nodes {
				ready, err := again(ctx, n)
				if err != nil {
					return 0, nil, err
				}
				longest = max(longest, ready)
			}
			return longest, f.clients, nil
		}},
		{"the planners and the gateways, all at once", func(ctx context.Context) (time.Duration, []*client, error) {
			ready, err := again(ctx, slices.Concat(f.Planners.Nodes, f.Gateways)...)
			return ready, f.clients, err
		}},
	}
}

// again kills nodes, starts them again and waits until they are ready.
func again(ctx context.Context, nodes ...*planners.Node) (time.Duration, error) {
	for _, n := range nodes {
		n.Kill()
	}
	begin := time.Now()
	err := rig.StartAll(ctx, nodes...)
	return time.Since(begin), err
}

// after kills and sends a pass at once.
func (p *passes) after(ctx context.Context, d death, warm float64) (Case, error) {
	ready, to, err := d.kill(ctx)
	if err != nil {
		return Case{}, err
	}
	t, err := p.run(ctx, to, p.PerPass)
	c := Case{Killed: d.what, ReadyMS: milliseconds(ready), CachedShare: t.share(), Failed: t.failed}
	if warm > 0 {
		c.OfWarm = c.CachedShare / warm
	}
	return c, err
}
