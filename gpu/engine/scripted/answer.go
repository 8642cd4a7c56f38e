package scripted

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// choice is one sequence of a request and what has been written of it.
type choice struct {
	index   int
	seq     *seq
	stop    stopper
	written int // pieces
	before  int // pieces that another engine wrote
	done    bool
	text    strings.Builder // of a response that is not streamed
}

// answerJob generates the answer to j on a rank and writes it.
func (x *exchange) answerJob(j *job, kv *kvLeg) error {
	pinned, err := x.pinned()
	if err != nil {
		return x.explain(err)
	}
	r := x.inc.pick(pinned)
	x.engine().record.update(x.rec, func(rec *Record) { rec.Rank = r.index })
	if err := kv.begin(j); err != nil {
		return x.explain(err)
	}
	if !x.sleep(time.Duration(float64(x.engine().opts.Timing.Request()) / x.engine().opts.Speed)) {
		return x.ctx.Err()
	}
	choices, err := x.submit(r, j, kv)
	defer x.withdraw(r, choices)
	if err != nil {
		return x.explain(err)
	}
	return x.write(r, j, kv, choices)
}

// explain answers with err when it is a fault of the request or of the engine's
// capacity; any other error is the exchange's own end.
func (x *exchange) explain(err error) error {
	if p, ok := errors.AsType[*problem](err); ok {
		return x.fail(p.status, p.kind, p.message, p.param)
	}
	if errors.Is(err, errQueueFull) {
		return x.busy("queue_full", "The engine's waiting queue is full.")
	}
	return err
}

// busy refuses for want of capacity.
func (x *exchange) busy(reason, message string) error {
	x.w.Header().Set(engine.HeaderReason, reason)
	x.w.Header().Set("Retry-After", "1")
	return x.fail(http.StatusServiceUnavailable, "ServiceUnavailableError", message, "")
}

// submit queues every choice of j, or as many as fit before the error.
func (x *exchange) submit(r *rank, j *job, kv *kvLeg) ([]*choice, error) {
	var choices []*choice
	for pi, p := range j.prompts {
		for n := range j.choices {
			c := &choice{index: pi*j.choices + n, stop: stopper{stops: j.stops}}
			c.seq = x.newSeq(j, p, c, uint64(n))
			kv.attach(r, c.seq)
			if err := r.submit(c.seq); err != nil {
				return choices, err
			}
			choices = append(choices, c)
		}
	}
	return choices, nil
}

// newSeq makes the sequence of a choice. Its produce runs on the rank's loop.
func (x *exchange) newSeq(j *job, p prompt, c *choice, n uint64) *seq {
	s := &seq{prompt: p.ids, salt: j.api.CacheSalt, maxNew: j.maxNew, pace: unlimited}
	g := x.act.Generate
	if g != nil && g.Tokens > 0 {
		s.maxNew = min(g.Tokens, int(x.engine().opts.MaxContext)-len(p.ids))
	}
	if g != nil && (g.FirstToken > 0 || g.Token > 0 || g.Stall != nil) {
		s.pace = 0
	}
	next := made(j, p.text, j.seed+n, s.maxNew)
	if g != nil && g.Text != nil {
		pieces := cutText(*g.Text)
		if g.Tokens == 0 {
			s.maxNew = min(s.maxNew, max(len(pieces), 1))
		}
		next = given(pieces)
	}
	s.maxNew -= j.skip(c, next, s.maxNew)
	var all []byte // ids follow the text, whole tokens at a time
	counted := 0
	s.produce = func() (string, []uint32, bool) {
		text, last := next()
		all = append(all, text...)
		var ids []uint32
		if whole := len(all) / tokenBytes * tokenBytes; whole > counted {
			ids = Tokenize(string(all[counted:whole]))
			counted = whole
		}
		shown, hit := c.stop.feed(text)
		return shown, ids, last || hit
	}
	return s
}

// skip makes the pieces that another engine has sent already, and returns how
// many they were.
func (j *job) skip(c *choice, next func() (string, bool), most int) (pieces int) {
	sent := 0
	for sent < len(j.shown) && pieces < most-1 {
		text, _ := next()
		shown, _ := c.stop.feed(text)
		sent += len(shown)
		pieces++
	}
	c.before = pieces
	return pieces
}

// made generates text after prompt.
func made(j *job, prompt string, seed uint64, most int) func() (string, bool) {
	g := newGenerator(prompt, seed)
	if j.poisoned {
		g.absorb("KV of another prompt")
	}
	n := 0
	return func() (string, bool) {
		text := g.next()
		n++
		natural := n >= j.api.MinTokens && g.ends(j.stopEvery)
		return text, natural || n == most && !j.byLimit
	}
}

// given hands out pieces, then nothing.
func given(pieces []string) func() (string, bool) {
	i := 0
	return func() (string, bool) {
		if i >= len(pieces) {
			return "", true
		}
		i++
		return pieces[i-1], i == len(pieces)
	}
}

// cutText splits text into tokens that are whole runes.
func cutText(text string) []string {
	var out []string
	start := 0
	for i := range text {
		if i-start >= tokenBytes {
			out = append(out, text[start:i])
			start = i
		}
	}
	if start < len(text) {
		out = append(out, text[start:])
	}
	return out
}

// withdraw ends the sequences that are still going.
func (x *exchange) withdraw(r *rank, choices []*choice) {
	for _, c := range choices {
		if was := r.cancel(c.seq); was != stageDone {
			x.stage = was.String()
		}
	}
}

// pacer lets sequences produce at the pace the script sets.
type pacer struct {
	x *exchange
	g *Generate
}

// before waits until token n (from 0) may be produced.
func (p pacer) before(r *rank, choices []*choice, n int) error {
	g := p.g
	if g == nil || g.FirstToken <= 0 && g.Token <= 0 && g.Stall == nil {
		return nil
	}
	d := g.Token.D()
	if n == 0 {
		d = g.FirstToken.D()
	}
	if !p.x.sleep(d) {
		return p.x.ctx.Err()
	}
	if s := g.Stall; s != nil && s.After == n {
		if err := p.x.out.silence(s.For.D()); err != nil {
			return err
		}
	}
	for _, c := range choices {
		r.allow(c.seq, n+1)
	}
	return nil
}

// next waits for c's next pieces and returns their text. finish is not empty
// with the last.
func (x *exchange) next(r *rank, c *choice) (text, finish string, err error) {
	p, err := r.wait(x.ctx, c.seq, c.written)
	if err != nil {
		return "", "", err
	}
	if p.err != nil {
		return "", "", p.err
	}
	var b strings.Builder
	take := p.pieces[:min(len(p.pieces), 1)] // one token an event
	for _, piece := range take {
		b.WriteString(piece.text)
	}
	c.written += len(take)
	if !p.done || c.written < len(c.seq.out) {
		return b.String(), "", nil
	}
	c.done = true
	finish = "length"
	if n := len(p.pieces); n > 0 && p.pieces[n-1].end {
		finish = "stop"
	}
	if finish == "length" {
		b.WriteString(c.stop.rest())
	}
	return b.String(), finish, nil
}

// stopper finds stop strings across tokens and holds back what may begin one.
type stopper struct {
	stops []string
	held  string
	hit   string
}

// feed returns the text that is certain by now; hit once a stop string is
// complete.
func (s *stopper) feed(text string) (shown string, hit bool) {
	if len(s.stops) == 0 {
		return text, false
	}
	all := s.held + text
	at := -1
	for _, stop := range s.stops {
		if i := strings.Index(all, stop); stop != "" && i >= 0 && (at < 0 || i < at) {
			at, s.hit = i, stop
		}
	}
	if at >= 0 {
		s.held = ""
		return all[:at], true
	}
	keep := 0
	for _, stop := range s.stops {
		for n := min(len(stop)-1, len(all)); n > keep; n-- {
			if strings.HasSuffix(all, stop[:n]) {
				keep = n
			}
		}
	}
	s.held = all[len(all)-keep:]
	return all[:len(all)-keep], false
}

// rest is what was held back when the text ended otherwise.
func (s *stopper) rest() string { return s.held }
