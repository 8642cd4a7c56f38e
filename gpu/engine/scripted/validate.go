package scripted

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Limits of a script, which may come from a file someone else wrote.
const (
	maxRules  = 1024
	maxParts  = 4096
	maxRepeat = 1 << 20
	maxReplay = 1 << 20
)

// scriptFault is one fault of a script and where it is, as a YAML path.
type scriptFault struct{ path, text string }

// checker collects faults.
type checker struct{ found []scriptFault }

func (c *checker) fault(bad bool, path, format string, args ...any) {
	if bad {
		c.found = append(c.found, scriptFault{path, fmt.Sprintf(format, args...)})
	}
}

// oneOf checks a word.
func (c *checker) oneOf(path, word string, words ...string) {
	if word == "" || slices.Contains(words, word) {
		return
	}
	text := fmt.Sprintf("%q is not one of %s", word, strings.Join(words, ", "))
	if near := nearest(word, words); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	c.found = append(c.found, scriptFault{path, text})
}

// Validate reports every fault of the script. Errors wrap ErrScript.
func (s *Script) Validate() error {
	var faults []error
	for _, f := range s.faults() {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrScript, strings.TrimPrefix(f.path, "$."), f.text))
	}
	return errors.Join(faults...)
}

func (s *Script) faults() []scriptFault {
	c := &checker{}
	if s.Engine != nil {
		s.Engine.check(c)
	}
	c.fault(s.Server.IdleClose < 0, "$.server.idle_close", "is negative")
	for i, h := range s.Health {
		path := "$.health[" + strconv.Itoa(i) + "]"
		c.fault(h.For < 0, path+".for", "is negative")
		c.fault(h.For == 0 && i < len(s.Health)-1, path, "needs for: only the last phase lasts for good")
		c.status(path+".status", h.Status)
	}
	s.Metrics.check(c)
	s.Events.check(c)
	for _, f := range []struct {
		name string
		word Fault
	}{{"missing", s.KV.Missing}, {"stale", s.KV.Stale}, {"dead", s.KV.Dead}} {
		c.oneOf("$.kv."+f.name, string(f.word), faultNames()...)
	}
	c.fault(s.KV.Lease < 0, "$.kv.lease", "is negative")
	c.fault(s.KV.Wait < 0 || s.KV.Wait.D() > time.Minute, "$.kv.wait", "is not 0 to 1m")
	c.fault(s.KV.Peer < 0 || s.KV.Peer.D() > time.Minute, "$.kv.peer", "is not 0 to 1m")
	c.fault(len(s.Rules) > maxRules, "$.rules", "holds %d rules: at most %d", len(s.Rules), maxRules)
	for i := range s.Rules {
		s.Rules[i].check(c, "$.rules["+strconv.Itoa(i)+"]")
	}
	return c.found
}

func (c *checker) status(path string, status int) {
	c.fault(status != 0 && (status < 200 || status > 599), path, "%d is no final HTTP status", status)
}

func (e *EngineSection) check(c *checker) {
	if e.Timing != nil {
		c.oneOf("$.engine.timing", *e.Timing, cost.EngineNames()...)
	}
	o := Options{}
	e.apply(&o)
	if err := o.Validate(); err != nil {
		c.fault(true, "$.engine", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// apply overrides o with what the section sets.
func (e *EngineSection) apply(o *Options) {
	set(&o.Model, e.Model)
	set(&o.Adapters, e.Adapters)
	setInt(&o.MaxContext, e.MaxContext)
	setInt(&o.BlockTokens, e.BlockTokens)
	setInt(&o.KVBlocks, e.KVBlocks)
	set(&o.MaxRunning, e.MaxRunning)
	set(&o.MaxWaiting, e.MaxWaiting)
	set(&o.StepTokens, e.StepTokens)
	set(&o.Ranks, e.Ranks)
	set(&o.Speed, e.Speed)
	set(&o.AnswerTokens, e.AnswerTokens)
	set(&o.StopEvery, e.StopEvery)
	set(&o.HashSeed, e.HashSeed)
	if e.Timing != nil {
		o.Timing, _ = cost.Engine(*e.Timing)
	}
	if l := e.Link; l != nil {
		o.Link = Link{l.Setup.D(), unit.Bytes(l.TokenBytes), unit.Bytes(l.BytesPerSecond), l.Groups}
	}
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func setInt[T ~int](field *T, value *int) {
	if value != nil {
		*field = T(*value)
	}
}

func (m *MetricsScript) check(c *checker) {
	c.status("$.metrics.status", m.Status)
	for i, v := range m.Set {
		path := "$.metrics.set[" + strconv.Itoa(i) + "]"
		c.fault(v.Name == "", path, "names no metric")
		c.fault(v.Rank != nil && *v.Rank < 0, path+".rank", "is negative")
		_, err := strconv.ParseFloat(v.Value, 64)
		c.fault(err != nil, path+".value", "%q is no number", v.Value)
	}
}

func (e *EventsScript) check(c *checker) {
	c.oneOf("$.events.format", e.Format, "map", "array")
	c.oneOf("$.events.hashes", e.Hashes, "int", "signed", "bytes")
	c.fault(e.ReplayFrames != 0 && e.ReplayFrames != 2 && e.ReplayFrames != 3, "$.events.replay_frames", "is neither 2 nor 3")
	c.fault(e.Buffer < 0 || e.Buffer > maxReplay, "$.events.buffer", "is not 0 to %d", maxReplay)
	c.fault(e.Publish == "" && e.Replay != "", "$.events.replay", "needs publish")
	for _, a := range []struct{ name, addr string }{{"publish", e.Publish}, {"replay", e.Replay}} {
		if a.addr == "" {
			continue
		}
		_, err := rankAddr(a.addr, 0)
		c.fault(err != nil, "$.events."+a.name, "%v", err)
	}
}

func (r *Rule) check(c *checker, path string) {
	c.fault(r.Times < 0, path+".times", "is negative")
	c.oneOf(path+".match.leg", r.Match.Leg, "aggregated", "prefill", "decode")
	c.fault(r.Match.Every < 0, path+".match.every", "is negative")
	for _, n := range r.Match.Nth {
		c.fault(n < 1, path+".match.nth", "counts from 1")
	}
	r.Do.check(c, path+".do")
}

func (a *Action) check(c *checker, path string) {
	given := 0
	for _, g := range []bool{a.Respond != nil, a.Raw != nil, a.Error != nil, a.Hang != nil, a.Die != nil, a.Generate != nil} {
		if g {
			given++
		}
	}
	c.fault(given > 1, path, "has more than one of respond, raw, error, hang, die and generate")
	c.fault(a.Delay < 0, path+".delay", "is negative")
	c.fault(a.Gap < 0, path+".gap", "is negative")
	for _, n := range a.Split {
		c.fault(n < 1, path+".split", "a piece needs at least one byte")
	}
	if r := a.Respond; r != nil {
		c.status(path+".respond.status", r.Status)
		r.check(c, path+".respond")
	}
	if a.Raw != nil {
		a.Raw.check(c, path+".raw")
	}
	if e := a.Error; e != nil {
		c.oneOf(path+".error.kind", e.Kind, "busy", "rate_limit", "context", "model", "internal")
		c.status(path+".error.status", e.Status)
	}
	if h := a.Hang; h != nil {
		c.oneOf(path+".hang.when", h.When, "before_headers", "after_headers")
		c.fault(h.For < 0, path+".hang.for", "is negative")
	}
	c.fault(a.Die != nil && a.Die.RestartAfter < 0, path+".die.restart_after", "is negative")
	if a.Generate != nil {
		a.Generate.check(c, path+".generate")
	}
	if k := a.Cut; k != nil {
		c.fault(k.How == "", path+".cut", "needs how: reset, close, end or hang")
		c.oneOf(path+".cut.how", k.How, "reset", "close", "end", "hang")
		c.fault(k.At != nil && *k.At < 0, path+".cut.at", "is negative")
		c.fault(k.For < 0, path+".cut.for", "is negative")
	}
	if k := a.KV; k != nil {
		c.oneOf(path+".kv.fault", string(k.Fault), faultNames()...)
		c.fault(k.Delay < 0, path+".kv.delay", "is negative")
	}
}

func (g *Generate) check(c *checker, path string) {
	c.fault(g.Tokens < 0, path+".tokens", "is negative")
	c.fault(g.FirstToken < 0, path+".first_token", "is negative")
	c.fault(g.Token < 0, path+".token", "is negative")
	c.fault(strings.ContainsAny(g.Comment, "\r\n"), path+".comment", "holds a line break")
	if s := g.Stall; s != nil {
		c.fault(s.After < 0, path+".stall.after", "is negative")
		c.fault(s.For < 0, path+".stall.for", "is negative")
	}
	if e := g.Error; e != nil {
		c.fault(e.After < 0, path+".error.after", "is negative")
	}
	if u := g.Usage; u != nil {
		c.oneOf(path+".usage.mode", u.Mode, "omit", "in_choices", "continuous", "always")
	}
}

func (p *Payload) check(c *checker, path string) {
	single := Part{Text: p.Text, Base64: p.Base64, Hex: p.Hex}
	c.fault(len(p.Parts) > 0 && (single != Part{}), path, "has both parts and a body of its own")
	c.fault(len(p.Parts) > maxParts, path+".parts", "holds %d parts: at most %d", len(p.Parts), maxParts)
	single.check(c, path)
	for i, part := range p.Parts {
		part.check(c, path+".parts["+strconv.Itoa(i)+"]")
	}
}

func (p Part) check(c *checker, path string) {
	given := 0
	for _, s := range []string{p.Text, p.Base64, p.Hex} {
		if s != "" {
			given++
		}
	}
	c.fault(given > 1, path, "has more than one of text, base64 and hex")
	c.fault(p.Delay < 0, path+".delay", "is negative")
	c.fault(p.Repeat < 0 || p.Repeat > maxRepeat, path+".repeat", "is not 0 to %d", maxRepeat)
	_, err := p.bytes()
	c.fault(err != nil, path, "%v", err)
}

// bytes decodes the part.
func (p Part) bytes() ([]byte, error) {
	switch {
	case p.Base64 != "":
		return base64.StdEncoding.DecodeString(p.Base64)
	case p.Hex != "":
		return hex.DecodeString(strings.Join(strings.Fields(p.Hex), ""))
	}
	return []byte(p.Text), nil
}

// chunk is a part ready to be written.
type chunk struct {
	bytes  []byte
	delay  time.Duration
	repeat int
}

// parts are the pieces of the payload. The script has been checked.
func (p *Payload) parts() []chunk {
	parts := p.Parts
	if len(parts) == 0 {
		parts = []Part{{Text: p.Text, Base64: p.Base64, Hex: p.Hex}}
	}
	out := make([]chunk, 0, len(parts))
	for _, part := range parts {
		b, _ := part.bytes()
		out = append(out, chunk{b, part.Delay.D(), part.Repeat})
	}
	return out
}

func faultNames() []string {
	return []string{string(Recompute), string(FailLeg), string(Lie), string(Die)}
}
