package scripted

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
)

// testRank is a rank whose clock runs by itself, as fast as its timers allow.
func testRank(t *testing.T, l limits, timing cost.EngineTime, blocks int) (*rank, *clock.Virtual) {
	t.Helper()
	c := clock.NewVirtual(time.Unix(1_800_000_000, 0))
	r := newRank(0, l, c, timing, 1, newBlockCache(blocks, 16, 0))
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { r.run(ctx) })
	tasks.Go(func() { drive(ctx, c) })
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	return r, c
}

// drive advances c to each timer as it is armed.
func drive(ctx context.Context, c *clock.Virtual) {
	for ctx.Err() == nil {
		if d, ok := c.Next(); ok {
			c.Advance(d)
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// sequence makes up a sequence of n prompt tokens, unlike any other with
// another salt.
func sequence(salt string, n, maxNew int) *seq {
	s := &seq{salt: salt, maxNew: maxNew, pace: unlimited}
	for i := range n {
		s.prompt = append(s.prompt, uint32(i))
	}
	s.produce = func() (string, []uint32, bool) { return "text", []uint32{7}, false }
	return s
}

// finish waits for s to end and returns its number of tokens.
func finish(t *testing.T, r *rank, s *seq) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n := 0
	for {
		p, err := r.wait(ctx, s, n)
		if err != nil {
			t.Fatalf("%v after %d tokens, %+v", err, n, r.load())
		}
		if n += len(p.pieces); p.done {
			return n
		}
	}
}

// Steps take the time that the cost model says.
func TestStepTimes(t *testing.T) {
	timing := cost.EngineTime{PrefillBase: 10, PrefillToken: 1, DecodeBase: 5, DecodeSequence: 1}
	r, _ := testRank(t, limits{8, 8, 64}, timing, 100)
	ms := func(d time.Duration) int { return int(d.Milliseconds()) }

	s := sequence("a", 100, 4)
	if err := r.submit(s); err != nil {
		t.Fatal(err)
	}
	finish(t, r, s)
	// 64 and 36 prompt tokens, the last step giving the first token; three decodes.
	if got := ms(s.first.Sub(s.enqueued)); got != 10+64+10+36 {
		t.Errorf("first token after %d ms", got)
	}
	if got := ms(s.finished.Sub(s.first)); got != 3*(5+1) {
		t.Errorf("three more after %d ms", got)
	}

	// Most of it is cached now: 96 of 100 tokens.
	again := sequence("a", 100, 1)
	if err := r.submit(again); err != nil {
		t.Fatal(err)
	}
	finish(t, r, again)
	if got := ms(again.finished.Sub(again.enqueued)); got != 10+4 || again.cached != 96 {
		t.Errorf("with %d cached tokens: %d ms", again.cached, got)
	}
}

// Two sequences share steps instead of waiting for one another.
func TestContinuousBatching(t *testing.T) {
	r, c := testRank(t, limits{8, 8, 1024}, cost.EngineTime{DecodeBase: 10}, 100)
	start := c.Now()
	a, b := sequence("a", 20, 101), sequence("b", 20, 101)
	for _, s := range []*seq{a, b} {
		if err := r.submit(s); err != nil {
			t.Fatal(err)
		}
	}
	finish(t, r, a)
	finish(t, r, b)
	if got := c.Now().Sub(start); got > 1030*time.Millisecond {
		t.Errorf("two sequences of 100 steps of 10 ms took %v", got)
	}
}

func TestQueueBounds(t *testing.T) {
	r, _ := testRank(t, limits{maxRunning: 1, maxWaiting: 2, stepTokens: 64}, cost.EngineTime{}, 100)
	first := sequence("a", 20, 5)
	first.pace = 0 // runs for good
	if err := r.submit(first); err != nil {
		t.Fatal(err)
	}
	for r.load().running == 0 {
		time.Sleep(time.Millisecond)
	}
	waiting := []*seq{sequence("b", 20, 5), sequence("c", 20, 5)}
	for _, s := range waiting {
		if err := r.submit(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.submit(sequence("d", 20, 5)); !errors.Is(err, errQueueFull) {
		t.Errorf("one too many: %v", err)
	}
	if was := r.cancel(waiting[0]); was != stageQueued {
		t.Errorf("cancelled while %s", was)
	}
	if l := r.load(); l.waiting != 1 {
		t.Errorf("a cancelled sequence still waits: %+v", l)
	}
	r.cancel(first)
	if n := finish(t, r, waiting[1]); n != 5 {
		t.Errorf("%d tokens", n)
	}
	if l := r.load(); l.held != 0 || l.running != 0 {
		t.Errorf("%+v", l)
	}
}

// When blocks run out the sequence admitted last goes back, and still ends with
// all its tokens.
func TestPreemption(t *testing.T) {
	r, _ := testRank(t, limits{8, 8, 1024}, cost.EngineTime{}, 8)
	var all []*seq
	for _, salt := range []string{"a", "b", "c"} {
		s := sequence(salt, 30, 60) // grows from 2 to 6 blocks
		all = append(all, s)
		if err := r.submit(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range all {
		if n := finish(t, r, s); n != 60 {
			t.Errorf("%d tokens", n)
		}
	}
	if l := r.load(); l.stats.preemptions == 0 || l.held != 0 {
		t.Errorf("%+v", l)
	}
}

// The events tell exactly what the cache holds, whatever happens, and the
// cache's books balance.
func TestCacheEventsTellTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(4, 12).Draw(t, "capacity")
		r := newRank(0, limits{4, 100, 40}, clock.NewVirtual(time.Time{}), cost.EngineTime{}, 1, newBlockCache(capacity, 4, 9))
		told := map[uint64]bool{}
		hear := func(events []kvevent.Event) {
			for _, e := range events {
				for i, h := range e.Hashes {
					if e.Kind == kvevent.Stored {
						if _, ok := e.Block(i); !ok || told[h] {
							t.Fatalf("stored twice or without tokens: %+v", e)
						}
					} else if !told[h] {
						t.Fatalf("removed unknown block: %+v", e)
					}
					told[h] = e.Kind == kvevent.Stored
				}
				if e.Kind == kvevent.Cleared {
					clear(told)
				}
			}
		}
		var live []*seq
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				s := sequence("", rapid.IntRange(1, 12).Draw(t, "prompt"), rapid.IntRange(1, 4).Draw(t, "new"))
				for i := range s.prompt {
					s.prompt[i] = uint32(i/4) * uint32(rapid.IntRange(1, 3).Draw(t, "token"))
				}
				if err := r.submit(s); err != nil {
					t.Fatal(err)
				}
				live = append(live, s)
			},
			"step": func(*rapid.T) {
				p, events := r.plan()
				hear(events)
				if p != nil {
					hear(r.apply(p))
				}
			},
			"cancel": func(t *rapid.T) {
				if len(live) > 0 {
					r.cancel(rapid.SampledFrom(live).Draw(t, "which"))
				}
			},
			"": func(t *rapid.T) {
				got := map[uint64]bool{}
				for h := range r.cache.byHash {
					got[h] = true
				}
				for h, there := range told {
					if !there {
						delete(told, h)
					}
				}
				if d := cmp.Diff(got, told); d != "" {
					t.Fatalf("cache and events differ (-cache +events):\n%s", d)
				}
				held, private := 0, 0
				for _, b := range r.cache.byHash {
					if b.refs > 0 {
						held++
					}
				}
				for _, s := range r.running {
					private += s.private
				}
				if c := r.cache; c.private != private || c.held() != held+private || c.free() < 0 || len(c.byHash)+private > capacity {
					t.Fatalf("books: %d blocks, %d held, %d private of %d, %d free", len(c.byHash), held, private, c.private, c.free())
				}
			},
		})
		for _, s := range live {
			r.cancel(s)
		}
		_, events := r.plan()
		hear(events)
		if r.cache.held() != 0 {
			t.Fatalf("%d blocks held by nobody", r.cache.held())
		}
	})
}

func TestTokenizer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		ids := Tokenize(text)
		if len(ids) != Tokens(text) || Detokenize(ids) != text {
			t.Fatalf("%q → %v → %q", text, ids, Detokenize(ids))
		}
		more := Tokenize(text + "more")
		if whole := len(text) / 4; cmp.Diff(ids[:whole], more[:whole]) != "" {
			t.Fatal("a prefix does not share its tokens")
		}
	})
}

// A conversation's next turn begins with the tokens of the turn before.
func TestTurnsShareTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		turns := []message{{"system", rapid.String().Draw(t, "system")}, {"user", rapid.String().Draw(t, "user")}}
		first := Tokenize(render(turns, false))
		answer := " bab mid"
		turns = append(turns, message{"assistant", answer}, message{"user", "and?"})
		second := Tokenize(render(turns, false))
		want := slices.Concat(first, Tokenize(answer))
		if cmp.Diff(want, second[:len(want)]) != "" {
			t.Fatal("the second turn's tokens differ from the first's")
		}
	})
}

// A text goes on the same way wherever it was cut.
func TestGeneratorContinues(t *testing.T) {
	whole := newGenerator("a prompt", 3)
	var all strings.Builder
	for range 6 {
		all.WriteString(whole.next())
	}
	text := all.String()
	for cut := 0; cut <= len(text); cut += 4 {
		g := newGenerator("a prompt"+text[:cut], 3)
		var rest strings.Builder
		for rest.Len() < len(text)-cut {
			rest.WriteString(g.next())
		}
		if rest.String() != text[cut:] {
			t.Errorf("after %d bytes: %q, want %q", cut, rest.String(), text[cut:])
		}
	}
	if newGenerator("a prompt", 4).next() == text[:4] {
		t.Error("the seed has no effect")
	}
}

func TestStopper(t *testing.T) {
	for _, tt := range []struct {
		stops, in []string
		want      string
		hit       bool
	}{
		{nil, []string{"ab", "cd"}, "abcd", false},
		{[]string{"bc"}, []string{"ab", "cd"}, "a", true},
		{[]string{"cx"}, []string{"ab", "cd"}, "abcd", false},
		{[]string{"d!", "b"}, []string{"a", "cd", "!b"}, "ac", true},
		{[]string{"ab"}, []string{"xa"}, "xa", false},
		{[]string{""}, []string{"xa"}, "xa", false},
	} {
		s := stopper{stops: tt.stops}
		got, hit := "", false
		for _, in := range tt.in {
			var shown string
			shown, hit = s.feed(in)
			if got += shown; hit {
				break
			}
		}
		if !hit {
			got += s.rest()
		}
		if got != tt.want || hit != tt.hit {
			t.Errorf("%q of %q: %q %v, want %q %v", tt.stops, tt.in, got, hit, tt.want, tt.hit)
		}
	}
}
