package trace

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Generate makes n requests, with their conversations, like those of the Mooncake conversation trace: 3.4 a
// second, one block common to all, two in five going on a conversation by a turn
// of usually one or two blocks, the others starting one. The same seed makes the
// same trace. What it is fitted to is in the test beside it.
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
	goOn              = 0.39 // share of requests that continue a conversation
	maxInput          = 126_195
	remembered        = 600 // conversations that may still go on
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
}

func (g *generator) next() Request {
	g.at += time.Duration(g.rng.ExpFloat64() / requestsPerSecond * float64(time.Second))
	s := g.prompt()
	out := unit.Tokens(min(g.lognormal(260, .75), 2000))
	g.sessions = append(g.sessions, s)
	if len(g.sessions) > remembered {
		g.sessions = g.sessions[1:]
	}
	return Request{At: g.at, Input: s.tokens, Output: max(out, 1), Blocks: s.blocks, Session: s.id}
}

// prompt goes on a remembered conversation or starts one.
func (g *generator) prompt() session {
	if len(g.sessions) > 0 && g.rng.Float64() < goOn {
		at := g.recent()
		if other := g.recent(); g.rng.Float64() < .4 && g.sessions[other].tokens < g.sessions[at].tokens {
			at = other // short conversations go on more often
		}
		s := g.sessions[at]
		g.sessions = append(g.sessions[:at], g.sessions[at+1:]...)
		return g.extend(s, unit.Tokens(g.lognormal(900, 1.45)))
	}
	g.started++
	return g.extend(session{id: g.started}, unit.Tokens(g.lognormal(6200, 1.2)))
}

// recent picks a remembered conversation, the last used ones most often.
func (g *generator) recent() int {
	back := int(float64(len(g.sessions)) * math.Pow(g.rng.Float64(), 8))
	return len(g.sessions) - 1 - back
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
	return session{s.id, tokens, blocks}
}

func (g *generator) lognormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.rng.NormFloat64())
}
