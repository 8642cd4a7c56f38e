package sim

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

// BlockTokens is the tokens of a KV block: those of a trace's.
const BlockTokens = trace.BlockTokens

// Model is the name under which all workers serve.
const Model = "model"

// sayEvery is how often workers say how they are.
const sayEvery = time.Second

// began is when virtual time begins.
var began = time.Unix(1_700_000_000, 0)

// play is one replay.
type play struct {
	schedule
	cfg      Config
	router   *route.Router
	table    *load.Table
	state    *prefix.State
	view     *fleet.View
	engines  []*engine
	samples  *fleet.Samples
	requests []request
	shadow   *watched
	report   Report

	turn           uint64
	ended          int
	apart          int
	prompt, cached unit.Tokens
	first          []time.Duration
	between        gaps
	output         float64 // the mean of late, 0 while none has ended
}

// request is one of the trace's.
type request struct {
	trace.Request
	chain    []prefix.Hash
	at       time.Duration
	lastAt   time.Duration // of its last token
	decision struct{ serve, prefill int }
	serve    *load.Reservation
	prefill  *load.Reservation // nil when aggregated
	presence route.Presence
}

// watched counts how often a shadow disagrees.
type watched struct {
	route.Policy
	compared, differed int
}

// Compared implements route.Shadow.
func (w *watched) Compared(agrees bool) {
	w.compared++
	if !agrees {
		w.differed++
	}
}

// always is a chooser of one choice.
type always struct{ choice *route.Choice }

func (a always) Choose(*route.Query) *route.Choice { return a.choice }
func (always) Done(*route.Choice)                  {}

// Run replays the requests, which are in the order of their arrival. It ends early
// with ctx's error.
func Run(ctx context.Context, c Config, requests []trace.Request) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	p := newPlay(c.withDefaults(), requests)
	for n := 0; p.ended < len(requests) && p.next(); n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return p.finish(), nil
}

const (
	// checkEvery is how many events pass between looks at the context.
	checkEvery = 1 << 12
	// progressEvery is how many requests end between reports of progress.
	progressEvery = 256
)

func newPlay(c Config, requests []trace.Request) *play {
	p := &play{cfg: c, table: load.NewTable(&measure.Registry{}), state: prefix.NewState(prefix.Options{}), requests: make([]request, len(requests))}
	routing := c.Route
	if c.Shadow != nil {
		p.shadow = &watched{Policy: c.Shadow}
		policy := routing.Policy
		if policy == nil {
			policy = route.Policies()[0]
		}
		routing.Chooser = always{route.NewChoice(policy, p.shadow, route.Mandate{Policy: policy.Name()})}
	}
	p.router = route.New(routing)
	p.found()
	for i, r := range requests {
		q := &p.requests[i]
		q.Request = r
		q.at = time.Duration(float64(r.At) / c.Speed)
		whole := min(len(r.Blocks), int(r.Input/BlockTokens)) // a partial block is in no cache
		for _, id := range r.Blocks[:whole] {
			// Ids of a trace name a block with all before it, as hashes do.
			q.chain = append(q.chain, prefix.Hash(id*0x9e3779b97f4a7c15+1))
		}
		p.at(q.at, func() { p.arrive(q, i) })
	}
	p.report.Worker = make([]int32, len(requests))
	p.say()
	return p
}

// found makes the fleet.
func (p *play) found() {
	var workers []fleet.Worker
	for i := range p.cfg.Pools {
		pool := &p.cfg.Pools[i]
		blocks := int(pool.KVTokens / BlockTokens)
		for n := range pool.Workers {
			workers = append(workers, fleet.Worker{
				ID: fleet.WorkerID(fmt.Sprintf("%02d-%s-%04d", i, pool.Role, n)), Epoch: 1, Incarnation: "sim", Role: pool.Role, Engine: "sim",
				Models: []string{Model}, Compat: "sim", Transfer: "sim",
				Capacity: fleet.Capacity{KVBlocks: unit.Blocks(blocks), BlockTokens: BlockTokens, MaxRunning: pool.MaxRunning},
				Labels:   []fleet.Label{{Key: route.LabelKVTokenBytes, Value: strconv.FormatInt(int64(pool.TokenBytes), 10)}},
			})
			p.engines = append(p.engines, &engine{at: len(p.engines), pool: pool, cache: newCache(blocks)})
		}
	}
	p.view = fleet.NewView(1, workers) // by id, which is the order they were made in
	for i := range p.view.Workers {
		// Each worker begins by telling that its cache is empty.
		for _, kind := range []prefix.FrameKind{prefix.FrameAttach, prefix.FrameBegin, prefix.FrameEnd} {
			f := &prefix.Frame{Kind: kind, Worker: p.view.Workers[i].ID, Epoch: 1}
			if kind != prefix.FrameAttach {
				f.Repair = 1
			}
			p.state.Apply(f)
		}
	}
}

// say has all workers say how they are, now and every second after.
func (p *play) say() {
	list := make([]fleet.Sample, len(p.engines))
	for i, e := range p.engines {
		free := float64(max(e.pool.KVTokens-e.held, 0) / BlockTokens)
		prompt := e.pool.Engine.Prefill(e.pool.StepTokens, 0)
		list[i] = fleet.Sample{ID: p.view.Workers[i].ID, Epoch: 1, At: began.Add(p.now), Stats: fleet.Stats{
			Running: fleet.Report(float64(len(e.computing) + len(e.decoding))), Waiting: fleet.Report(float64(len(e.waiting))),
			KVBlocksFree: fleet.Report(free), DecodeStepSeconds: fleet.Report(e.pool.Engine.Decode(max(len(e.decoding), 1), 0).Seconds()),
		}}
		if prompt > 0 {
			list[i].Stats.PrefillTokensPerSecond = fleet.Report(float64(e.pool.StepTokens) / prompt.Seconds())
		}
	}
	p.samples = fleet.NewSamples(list)
	if p.ended < len(p.requests) {
		p.at(p.now+sayEvery, p.say)
	}
}

// arrive routes a request as a gateway does.
func (p *play) arrive(r *request, at int) {
	q := route.Query{
		Model: Model, Prompt: max(r.Input, 1), Chain: r.chain, BlockTokens: BlockTokens, Turn: p.turn, Now: began.Add(p.now),
		Seed: p.cfg.Seed ^ uint64(at+1)*0x9e3779b97f4a7c15, Session: session(r.Session),
		Class: uint32(admit.Standard), Output: unit.Tokens(p.output), Waited: p.now - r.at,
	}
	p.turn++
	d, err := p.router.Decide(&q, p.table.Columns(p.view), p.samples, route.Caches{Events: p.state.Table()})
	if err != nil {
		p.at(p.now+retryAfter, func() { p.arrive(r, at) }) // all are full: it waits, as in a gateway's line
		return
	}
	uncached := max(q.Prompt-d.ServeHit, 0)
	r.decision.serve, r.decision.prefill = d.Serve, d.Prefill
	if d.Path == route.Disaggregated {
		left := max(q.Prompt-d.PrefillHit, 0)
		r.prefill = d.Slots[d.Prefill].Reserve(load.Prefill, load.Work{Prompt: left, Context: left})
		r.serve = d.Slots[d.Serve].Reserve(load.Decode, load.Work{Context: uncached})
		p.apart++
	} else {
		r.serve = d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: uncached, Context: uncached})
	}
	r.presence = p.router.Commit(&q, &d)
	p.report.Worker[at] = int32(d.Serve)
	p.at(p.now+p.engines[d.Serve].pool.Engine.Request(), func() { p.begin(r) })
}

// session is the hash by which policies know a conversation, 0 without one.
func session(id uint64) uint64 {
	if id == 0 {
		return 0
	}
	id *= 0x9e3779b97f4a7c15
	id = (id ^ id>>30) * 0xbf58476d1ce4e5b9
	return id ^ id>>27 | 1
}

// learn takes in an output's length, of which a gateway expects the mean.
func (p *play) learn(output unit.Tokens) {
	const fade = 1. / 64
	if p.output == 0 {
		p.output = float64(output)
	}
	p.output += fade * (float64(output) - p.output)
}

// retryAfter is how long a request waits that no worker takes.
const retryAfter = 20 * time.Millisecond

// begin sends the request's first leg.
func (p *play) begin(r *request) {
	prompt, output := max(r.Input, 1), max(int(r.Output), 1)
	serve := p.engines[r.decision.serve]
	generate := &leg{request: r, prompt: prompt, context: prompt, left: output, tokens: prompt + unit.Tokens(output), ended: func() { p.end(r) }}
	if r.prefill == nil {
		generate.ready = func(cached unit.Tokens) {
			p.prompt, p.cached = p.prompt+prompt, p.cached+cached
			p.token(r, p.now)
			r.serve.FirstToken()
		}
		p.join(serve, generate)
		return
	}
	from := p.engines[r.decision.prefill]
	p.join(from, &leg{request: r, prompt: prompt, context: prompt, tokens: prompt, ready: func(cached unit.Tokens) {
		p.prompt, p.cached = p.prompt+prompt, p.cached+cached
		r.prefill.Close()
		has := min(unit.Tokens(serve.cache.match(r.chain))*BlockTokens, prompt)
		moves, _ := cost.TransferTime(p.cfg.Link, unit.Bytes(prompt-has)*serve.pool.TokenBytes)
		p.at(p.now+moves, func() {
			p.insert(r.decision.serve, r.chain)
			generate.prompt = 0
			p.join(serve, generate)
		})
	}})
}

// join gives an engine a leg.
func (p *play) join(e *engine, l *leg) {
	e.requests++
	e.waiting = append(e.waiting, l)
	if !e.running {
		p.start(e)
		return
	}
	p.interrupt(e)
}

// start begins the engine's next run of steps, if there is something to do.
func (p *play) start(e *engine) {
	if e.running = !e.idle(); !e.running {
		return
	}
	e.plan()
	r := &e.run
	r.began = p.now
	r.id++
	id := r.id
	p.at(p.now+time.Duration(r.steps)*r.each, func() { p.stepped(e, id) })
}

// interrupt ends a run after the step that is underway, since something came.
func (p *play) interrupt(e *engine) {
	r := &e.run
	steps := int((p.now-r.began)/r.each) + 1
	if steps >= r.steps {
		return
	}
	r.steps = steps
	r.id++
	id := r.id
	p.at(r.began+time.Duration(steps)*r.each, func() { p.stepped(e, id) })
}

// stepped takes in a run of steps that has ended, and begins the next.
func (p *play) stepped(e *engine, id uint64) {
	r := &e.run
	if r.id != id {
		return // it was cut short
	}
	e.busy += time.Duration(r.steps) * r.each
	p.generated(e)
	p.computed(e)
	p.start(e)
}

// generated gives each that decodes its tokens.
func (p *play) generated(e *engine) {
	steps := e.run.steps
	kept := e.decoding[:0]
	for _, l := range e.decoding {
		if l.request.lastAt == 0 { // its KV was moved here
			p.token(l.request, e.run.began+e.run.each)
			l.request.serve.FirstToken()
			p.between.add(e.run.each, steps-1)
		} else {
			// The first of the run came after whatever was before it.
			p.between.add(p.now-time.Duration(steps-1)*e.run.each-l.request.lastAt, 1)
			p.between.add(e.run.each, steps-1)
		}
		l.request.lastAt = p.now
		l.left -= steps
		l.context += unit.Tokens(steps)
		if l.left > 0 {
			kept = append(kept, l)
			continue
		}
		e.held -= l.tokens
		l.ended()
	}
	clear(e.decoding[len(kept):])
	e.decoding = kept
}

// computed takes in the parts of prompts that the run computed.
func (p *play) computed(e *engine) {
	for i, l := range e.run.parts {
		l.done += e.run.spans[i].New
		e.computed += e.run.spans[i].New
	}
	kept := e.computing[:0]
	for _, l := range e.computing {
		if !l.begun || l.done < l.prompt {
			kept = append(kept, l)
			continue
		}
		p.insert(e.at, l.request.chain)
		l.ready(l.hit)
		switch {
		case l.ended == nil: // the other leg goes on
			e.held -= l.tokens
		case l.left <= 1:
			e.held -= l.tokens
			l.ended()
		default:
			l.left--
			l.context++
			e.decoding = append(e.decoding, l)
		}
	}
	clear(e.computing[len(kept):])
	e.computing = kept
}

// insert puts a prompt into an engine's cache and reports what changed there.
func (p *play) insert(at int, chain []prefix.Hash) {
	e := p.engines[at]
	e.cache.insert(chain)
	stores, removes := e.cache.stored, e.cache.removed
	for len(stores)+len(removes) > 0 {
		f := &prefix.Frame{Kind: prefix.FrameDelta, Worker: p.view.Workers[at].ID, Epoch: 1, First: e.told + 1}
		f.Removes = removes[:min(len(removes), prefix.MaxFrameBlocks)]
		f.Stores = stores[:min(len(stores), prefix.MaxFrameBlocks-len(f.Removes))]
		removes, stores = removes[len(f.Removes):], stores[len(f.Stores):]
		e.told += uint64(len(f.Removes) + len(f.Stores))
		for _, h := range f.Removes {
			e.sums.Drop(h)
		}
		for _, h := range f.Stores {
			e.sums.Add(h)
		}
		f.Last, f.Sum = e.told, e.sums.Total()
		p.state.Apply(f)
	}
	e.cache.stored, e.cache.removed = e.cache.stored[:0], e.cache.removed[:0]
}

// token is a request's first, at t.
func (p *play) token(r *request, t time.Duration) {
	p.first = append(p.first, t-r.at)
	r.lastAt = t
}

// end is a request's.
func (p *play) end(r *request) {
	r.serve.Close()
	r.presence.Leave()
	p.learn(max(r.Output, 1))
	if p.ended++; p.cfg.Progress != nil && p.ended%progressEvery == 0 {
		p.cfg.Progress(p.ended, len(p.requests))
	}
}

// finish sums up.
func (p *play) finish() *Report {
	r := &p.report
	r.Requests, r.Virtual = len(p.requests), p.now
	if len(p.requests) > 0 {
		r.Virtual -= p.requests[0].at
		r.Disaggregated = float64(p.apart) / float64(len(p.requests))
	}
	if p.prompt > 0 {
		r.HitRatio = float64(p.cached) / float64(p.prompt)
	}
	var computed, served []float64
	busy, workers := map[string]time.Duration{}, map[string]int{}
	for _, e := range p.engines {
		if e.pool.Role&fleet.RolePrefill != 0 {
			computed = append(computed, float64(e.computed))
		}
		if e.pool.Role&fleet.RoleDecode != 0 {
			served = append(served, float64(e.requests))
		}
		busy[e.pool.Role.String()] += e.busy
		workers[e.pool.Role.String()]++
	}
	r.Skew, r.SkewRequests = skew(computed), skew(served)
	r.First, r.Between = timesOf(p.first), p.between.times()
	r.Utilisation = map[string]float64{}
	for role, d := range busy {
		if r.Virtual > 0 {
			r.Utilisation[role] = d.Seconds() / r.Virtual.Seconds() / float64(workers[role])
		}
	}
	r.ShadowDiffers = math.NaN()
	if p.shadow != nil && p.shadow.compared > 0 {
		r.ShadowDiffers = float64(p.shadow.differed) / float64(p.shadow.compared)
	}
	return r
}
