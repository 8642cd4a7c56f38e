package trace

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Generate makes n requests, with their conversations, like those of the Mooncake conversation trace: 3.4 a
// second, one block common to all, two in five going on a conversation by a turn
// of usually one or two blocks after some two minutes, the others starting one. The
// same seed makes the same trace. What it is fitted to is in the test beside it.
func Generate(seed uint64, n int) []Request {
	g := generator{rng: rand.New(rand.NewPCG(seed, 0x7ace))} //nolint:gosec // a workload needs no secrecy
	out := make([]Request, n)
	for i := range out {
		out[i] = g.next()
	}
	return out
}

const (
	requestsPerSecond = 3.4
	goOn              = 0.40 // share of requests that continue a conversation, if there is one
	maxInput          = 126_195
	remembered        = 6000 // conversations that may still go on: those of half an hour and more
	pauseMedian       = 140  // seconds between two turns
	pauseSigma        = 1.0
	once              = .50 // share of conversations that have one turn
)

type generator struct {
	rng      *rand.Rand
	at       time.Duration
	nextID   uint64
	started  uint64    // conversations so far
	sessions []session // in order of last use
}

type session struct {
	id     uint64
	tokens unit.Tokens
	blocks []uint64
	last   time.Duration // its last turn
	goesOn bool
}

func (g *generator) next() Request {
	g.at += time.Duration(g.rng.ExpFloat64() / requestsPerSecond * float64(time.Second))
	s := g.prompt()
	out := unit.Tokens(min(g.lognormal(260, .75), 2000))
	if s.goesOn {
		g.sessions = append(g.sessions, s)
	}
	if len(g.sessions) > remembered {
		g.sessions = g.sessions[1:]
	}
	return Request{At: g.at, Input: s.tokens, Output: max(out, 1), Blocks: s.blocks, Session: s.id}
}

// prompt goes on a remembered conversation or starts one.
func (g *generator) prompt() session {
	if len(g.sessions) > 0 && g.rng.Float64() < goOn {
		at, found := g.paused()
		if !found {
			return g.start()
		}
		if other, ok := g.paused(); ok && g.rng.Float64() < .4 && g.sessions[other].tokens < g.sessions[at].tokens {
			at = other // short conversations go on more often
		}
		s := g.sessions[at]
		g.sessions = append(g.sessions[:at], g.sessions[at+1:]...)
		return g.extend(s, unit.Tokens(g.lognormal(900, 1.45)))
	}
	return g.start()
}

func (g *generator) start() session {
	g.started++
	return g.extend(session{id: g.started, goesOn: g.rng.Float64() >= once}, unit.Tokens(g.lognormal(6200, 1.2)))
}

// paused picks the conversation whose last turn was a pause ago, if there were any
// then.
func (g *generator) paused() (at int, found bool) {
	then := g.at - time.Duration(g.lognormal(pauseMedian, pauseSigma)*float64(time.Second))
	if then < g.sessions[0].last {
		return 0, false
	}
	at, _ = slices.BinarySearchFunc(g.sessions, then, func(s session, t time.Duration) int { return cmp.Compare(s.last, t) })
	return min(at, len(g.sessions)-1), true
}

// extend lengthens a prompt. The block that was partial gets a new id, because
// what it holds has changed.
func (g *generator) extend(s session, by unit.Tokens) session {
	tokens := min(s.tokens+max(by, 1), maxInput)
	keep := int(s.tokens / BlockTokens)
	blocks := append(make([]uint64, 0, tokens/BlockTokens+1), s.blocks[:min(keep, len(s.blocks))]...)
	for unit.Tokens(len(blocks))*BlockTokens < tokens {
		if len(blocks) == 0 {
			blocks = append(blocks, 0) // the common system prompt
			continue
		}
		g.nextID++
		blocks = append(blocks, g.nextID)
	}
	return session{s.id, tokens, blocks, g.at, s.goesOn}
}

func (g *generator) lognormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.rng.NormFloat64())
}
