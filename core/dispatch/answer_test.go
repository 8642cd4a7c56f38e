package dispatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Answers of every length are read whole, and only what is returned stays held.
func TestReadAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]int{1, 4095, 4096, 4097, 100_000, 3 << 20}).Draw(rt, "limit")
		near := rapid.SampledFrom([]int{0, firstPiece, 2 * firstPiece, 8 * firstPiece, largestPiece, 2 * largestPiece, limit}).Draw(rt, "near")
		text := bytes.Repeat([]byte("0123456789a"), (near+64)/11+1)[:max(near+rapid.IntRange(-2, 2).Draw(rt, "off"), 0)]
		var r io.Reader = bytes.NewReader(text)
		broken := rapid.Bool().Draw(rt, "broken")
		if broken {
			r = io.MultiReader(r, iotest.ErrReader(fmt.Errorf("%w: %w", engine.ErrBroken, io.ErrUnexpectedEOF)))
		}
		if rapid.Bool().Draw(rt, "end with the last byte") {
			r = iotest.DataErrReader(r)
		}
		const budget = 16 << 20
		gate := admit.New(admit.Config{MaxBodyBytes: budget})
		pass, err := gate.Enter()
		if err != nil {
			rt.Fatal(err)
		}
		l := &Life{pass: pass}
		stated := rapid.SampledFrom([]int{0, 0, len(text), len(text) / 2, 1}).Draw(rt, "stated") // an engine may lie
		got, err := l.readAll(r, int64(stated), unit.Bytes(limit))
		switch {
		case len(text) > limit && errors.Is(err, engine.ErrBroken): // with the byte that was one too many
		case len(text) > limit:
			if !errors.Is(err, errTooLong) || !bytes.Equal(got, text[:limit]) {
				rt.Fatalf("%d bytes, %v", len(got), err)
			}
		case broken:
			if !errors.Is(err, engine.ErrBroken) || got != nil {
				rt.Fatalf("%d bytes, %v", len(got), err)
			}
		case err != nil || !bytes.Equal(got, text):
			rt.Fatalf("%d bytes, %v", len(got), err)
		}
		pass.Free(unit.Bytes(cap(got)))
		if err := pass.Hold(budget); err != nil {
			rt.Fatalf("bytes stay held: %v", err)
		}
	})
}

// Whole answers, and engines' errors, share the budget of the bodies: what does
// not fit fails, and nothing of it stays held.
func TestAnswersAreHeld(t *testing.T) {
	const budget = 1 << 20
	answer := strings.Replace(goodAnswer, "hi", strings.Repeat("x", 150_000), 1)
	for name, s := range map[string]script{
		"answers":         {status: 200, plain: true, body: []part{{text: answer}}},
		"errors":          {status: 500, plain: true, body: []part{{text: answer}}},
		"too long":        {status: 200, plain: true, body: []part{{text: strings.Repeat(answer, 3)}}},
		"broken":          {status: 200, plain: true, body: []part{{text: answer}, {err: fmt.Errorf("%w: reset", engine.ErrBroken)}}},
		"no such answer":  {status: 200, plain: true, body: []part{{text: answer[1:]}}},
		"refused by many": {status: 503, plain: true, body: []part{{text: answer}}},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, Config{Admit: admit.Config{MaxBodyBytes: budget}, MaxAnswer: 300_000}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
			y.plays(map[fleet.WorkerID]script{"a": s, "b": s})
			all := make(chan struct{})
			var wg sync.WaitGroup
			var mu sync.Mutex
			seen := map[int]int{}
			for range 40 {
				wg.Go(func() {
					// Clients that do not read keep what was read for them.
					got := sink{write: func([]byte) { <-all }}
					o := y.serveTo(t.Context(), shortWhole, &got)
					mu.Lock()
					defer mu.Unlock()
					if seen[o.Status]++; o.Status == 503 && name == "answers" {
						if o.Err == nil || o.Err.Code != "answer_memory" {
							t.Errorf("refused with %v", o.Err)
						}
						if seen[503] == 30 {
							close(all)
						}
					}
				})
			}
			if name != "answers" {
				close(all)
			}
			wg.Wait()
			if name == "answers" && (seen[200] == 0 || seen[503] < 30) {
				t.Errorf("statuses %v", seen)
			}
			life, err := y.d.Accept("test")
			if err != nil {
				t.Fatal(err)
			}
			defer life.Close()
			if err := life.Hold(budget); err != nil {
				t.Errorf("bytes stay held: %v", err)
			}
			life.Refuse(errTooLong)
			life.Close()
			y.balanced()
		})
	}
}

// Events longer than a stream's buffer share the budget too: a stream whose event
// does not fit ends with an error, and nothing stays held when all have ended.
func TestLongEventsAreHeld(t *testing.T) {
	const budget, streams = 1 << 20, 20
	long := strings.Replace(evHi, "hi", strings.Repeat("x", 100_000), 1)
	y := newYard(t, Config{Admit: admit.Config{MaxBodyBytes: budget}}, fleet.Worker{ID: "a"})
	y.plays(map[fleet.WorkerID]script{"a": streamOf(evRole, evHi, long, evStop, evUsage, evDone)})
	all := make(chan struct{})
	var wg sync.WaitGroup
	var failed atomic.Int32
	for range streams {
		wg.Go(func() {
			got := sink{write: func(p []byte) {
				if len(p) > 50_000 {
					<-all
				}
			}}
			o := y.serveTo(t.Context(), shortStream, &got)
			switch {
			case o.Err == nil:
			case o.Err.Code != "answer_memory" || !o.Begun:
				t.Errorf("%v", o.Err)
			default:
				if failed.Add(1) == streams-10 { // at least: the budget has room for fewer than ten
					close(all)
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n < streams-10 || n == streams {
		t.Errorf("%d of %d failed", n, streams)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	if err := life.Hold(budget); err != nil {
		t.Errorf("bytes stay held: %v", err)
	}
	life.Refuse(errTooLong)
	life.Close()
	y.balanced()
}
