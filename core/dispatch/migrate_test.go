package dispatch

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// teller is an engine that tells one story, a token an event, and can go on with
// it anywhere. cuts says how each call ends: after how many events, and how.
type teller struct {
	mu    sync.Mutex
	cuts  []cut
	calls int
	deaf  bool // it knows nothing of continuations
}

type cut struct {
	after int // events of this call; -1 is never
	how   int // of the ends below
}

const storyLength = 12

var ends = []part{
	{err: fmt.Errorf("%w: reset", engine.ErrBroken)},
	{err: io.EOF},
	{text: `data: {"error":{"message":"bye","type":"t","param":null,"code":"draining"}}` + "\n\n"},
}

func token(n int) string { return fmt.Sprintf(" %c\\\"%d", 'a'+n%26, n) }

func (s *teller) play(_ fleet.WorkerID, c *engine.Call) script {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := cut{after: -1}
	if s.calls < len(s.cuts) {
		limit = s.cuts[s.calls]
	}
	s.calls++
	out := script{status: 200, continues: "0"}
	from := 0
	given := gjson.GetBytes(c.Body, engine.ContinueField)
	if given.Exists() && !s.deaf {
		from = len(given.Get("token_ids").Array())
		out.continues = strconv.Itoa(from)
		for i, id := range given.Get("token_ids").Array() {
			if int(id.Int()) != 1000+i {
				return refusing(400, "")
			}
		}
	}
	var events []string
	if !given.Exists() || s.deaf {
		events = append(events, ": wait\n\n", evRole)
	}
	for n := from; n < storyLength; n++ {
		finish := "null"
		if n == storyLength-1 {
			finish = `"stop"`
		}
		events = append(events, fmt.Sprintf(`data: {"choices":[{"delta":{"content":"%s"},"finish_reason":%s,"token_ids":[%d]}]}`+"\n\n", token(n), finish, 1000+n))
	}
	events = append(events, fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}`+"\n\n", storyLength), evDone)
	if s.deaf {
		out.continues = ""
	}
	for i, e := range events {
		if i == limit.after {
			out.body = append(out.body, ends[limit.how])
			return out
		}
		out.body = append(out.body, part{text: e})
	}
	return out
}

func story(stream string) (text string, roles int) {
	var b strings.Builder
	for event := range strings.SplitSeq(stream, "\n\n") {
		data := gjson.Get(strings.TrimPrefix(event, "data: "), "choices.0.delta")
		b.WriteString(data.Get("content").Str)
		if data.Get("role").Exists() {
			roles++
		}
	}
	return b.String(), roles
}

func whole() string {
	var b strings.Builder
	for n := range storyLength {
		b.WriteString(strings.ReplaceAll(token(n), `\"`, `"`))
	}
	return b.String()
}

// However often and wherever a stream breaks, its client gets the whole story
// once, or a visible failure behind a beginning of it.
func TestMigration(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cuts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) cut {
			return cut{rapid.IntRange(0, storyLength+4).Draw(rt, "after"), rapid.IntRange(0, len(ends)-1).Draw(rt, "how")}
		}), 0, 5).Draw(rt, "cuts")
		wantsIDs := rapid.Bool().Draw(rt, "ids")
		y := newYard(t, Config{Migrations: 3}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
		s := &teller{cuts: cuts}
		y.play = s.play
		var got sink
		body := fmt.Sprintf(`{"model":"m","stream":true,"return_token_ids":%v,"messages":[{"role":"user","content":"hi"}]}`, wantsIDs)
		o := y.serve(t.Context(), body, &got)
		text, roles := story(got.got.String())
		switch {
		case !strings.HasPrefix(whole(), text):
			rt.Fatalf("got %q", text)
		case (o.Err == nil) != complete(got.got.String()) || o.Err == nil && text != whole():
			rt.Fatalf("%v after %q", o.Err, got.got.String())
		case o.Err == nil && (roles != 1 || o.Usage.Output != storyLength || o.Usage.Prompt != 7):
			rt.Fatalf("%d roles, usage %+v", roles, o.Usage)
		case !wantsIDs && strings.Contains(got.got.String(), "token_ids"):
			rt.Fatalf("ids are shown: %s", got.got.String())
		case wantsIDs && strings.Count(got.got.String(), "token_ids") != strings.Count(text, " "):
			rt.Fatalf("ids are missing: %s", got.got.String())
		}
		if o.Err == nil && y.counter(measure.Migrations) != float64(o.Placement.Migrations) {
			rt.Fatalf("%v migrations counted, %d made", y.counter(measure.Migrations), o.Placement.Migrations)
		}
		y.balanced()
	})
}

// Breaks in the middle, three of them, are survived.
func TestMigrationGoesOn(t *testing.T) {
	for how := range ends {
		y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
		s := &teller{cuts: []cut{{4, how}, {3, how}, {0, how}}}
		y.play = s.play
		var got sink
		o := y.serve(t.Context(), shortStream, &got)
		if text, _ := story(got.got.String()); o.Err != nil || text != whole() || o.Placement.Migrations != 3 {
			t.Errorf("%v, %d migrations: %q", o.Err, o.Placement.Migrations, text)
		}
	}
}

// A worker that dies before its status is replaced like one that dies after it,
// once its engine is known.
func TestMigrationBeforeTheStatus(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	s := &teller{}
	y.play = s.play
	for range 30 { // both have shown what they can
		y.serve(t.Context(), shortStream, &sink{})
	}
	died := false
	y.play = func(w fleet.WorkerID, c *engine.Call) script {
		if !died {
			died = true
			return script{err: fmt.Errorf("%w: reset", engine.ErrBroken)}
		}
		return s.play(w, c)
	}
	var got sink
	o := y.serve(t.Context(), shortStream, &got)
	if text, roles := story(got.got.String()); o.Err != nil || text != whole() || roles != 1 || o.Placement.Migrations != 1 {
		t.Errorf("%v, %d migrations: %q", o.Err, o.Placement.Migrations, text)
	}
	y.balanced()
}

// What cannot be continued faithfully is not continued at all.
func TestNoMigration(t *testing.T) {
	broken := []cut{{4, 0}}
	for name, tt := range map[string]struct {
		teller *teller
		cfg    Config
		body   string
		calls  int
	}{
		"engine that cannot":  {&teller{cuts: broken, deaf: true}, Config{}, shortStream, 1},
		"switched off":        {&teller{cuts: broken}, Config{Migrations: -1}, shortStream, 1},
		"several answers":     {&teller{cuts: broken}, Config{}, `{"model":"m","stream":true,"n":2}`, 1},
		"log probabilities":   {&teller{cuts: broken}, Config{}, `{"model":"m","stream":true,"logprobs":true}`, 1},
		"the end was seen":    {&teller{cuts: []cut{{storyLength + 2, 0}}}, Config{}, shortStream, 1},
		"a failure elsewhere": {&teller{cuts: []cut{{4, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}}, Config{}, shortStream, 3}, // each worker once without output
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, tt.cfg, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
			y.play = tt.teller.play
			var got sink
			o := y.serve(t.Context(), tt.body, &got)
			if o.Err == nil || complete(got.got.String()) || tt.teller.calls != tt.calls || !o.Begun {
				t.Errorf("%v after %d calls: %q", o.Err, tt.teller.calls, got.got.String())
			}
			// A stream that nobody goes on with did not migrate.
			if n := y.counter(measure.Migrations); n != float64(tt.calls-1) || o.Placement.Migrations != tt.calls-1 {
				t.Errorf("%v migrations counted, %d told", n, o.Placement.Migrations)
			}
			y.balanced()
		})
	}
}

// The next worker may be one that cannot continue: nothing of its new answer is
// shown.
func TestMigrationToAnEngineThatCannot(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	able, deaf := &teller{cuts: []cut{{4, 0}}}, &teller{deaf: true}
	y.play = func(w fleet.WorkerID, c *engine.Call) script {
		if gjson.GetBytes(c.Body, engine.ContinueField).Exists() {
			return deaf.play(w, c)
		}
		return able.play(w, c)
	}
	var got sink
	o := y.serve(t.Context(), shortStream, &got)
	if text, roles := story(got.got.String()); o.Err == nil || o.Err.Code != codeBroken || roles != 1 || strings.Count(text, " ") != 2 || o.Placement.Migrations != 0 || y.counter(measure.Migrations) != 0 {
		t.Errorf("%v after %q", o.Err, got.got.String())
	}
	y.balanced()
}

// The client leaves while its stream is on its way to another worker.
func TestClientLeavesDuringMigration(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	s := &teller{cuts: []cut{{4, 0}}}
	ctx, cancel := context.WithCancel(t.Context())
	y.play = func(w fleet.WorkerID, c *engine.Call) script {
		if gjson.GetBytes(c.Body, engine.ContinueField).Exists() {
			cancel()
			return script{hang: true}
		}
		return s.play(w, c)
	}
	if o := y.serve(ctx, shortStream, &sink{}); o.Name != "canceled" {
		t.Errorf("%s: %v", o.Name, o.Err)
	}
	y.balanced()
}
