package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
	"github.com/yardmaster/yardmaster/gpu/zmtp"
)

// patience bounds every wait of these tests, on a busy machine.
const patience = 20 * time.Second

func publishing(t *testing.T, script string) *scripted.Engine {
	t.Helper()
	return scripted.NewTest(t, scripted.YAML(`engine: {block_tokens: 4, kv_blocks: 40, max_context: 160}
events:
  publish: 127.0.0.1:0
  replay: 127.0.0.1:0
`+script))
}

// follow reads an engine's events into a mirror until the test ends.
func follow(t *testing.T, e *scripted.Engine, registry *measure.Registry) (m *Mirror, stop func()) {
	t.Helper()
	pub, replay := e.EventsAddr(0)
	m = NewMirror(0)
	z := ZMTP{
		Publish: "tcp://" + pub, Registry: registry,
		Options: zmtp.Options{ReconnectMin: 5 * time.Millisecond, ReconnectMax: 20 * time.Millisecond},
	}
	if replay != "" {
		z.Replay = "tcp://" + replay
	}
	return m, run(t, z, NewTranslator(m, scope))
}

// run reads z into tr until the test ends or stop is called.
func run(t *testing.T, z ZMTP, tr *Translator) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var task sync.WaitGroup
	task.Go(func() {
		if err := z.Run(ctx, tr); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); task.Wait() })
	t.Cleanup(stop)
	return stop
}

// ask makes the engine compute a prompt of n blocks that begins with word.
func ask(t *testing.T, e *scripted.Engine, word, n int) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"scripted","prompt":%q,"max_tokens":2}`, prompt(word, n))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", resp.Status, text, err)
	}
}

// prompt is n blocks of 16 bytes, all of them word.
func prompt(word, n int) string { return strings.Repeat(fmt.Sprintf("%016d", word), n) }

// names are the index's names of a prompt's blocks.
func names(word, n int) []prefix.Hash {
	var ids []int32
	for _, id := range scripted.Tokenize(prompt(word, n)) {
		ids = append(ids, int32(id))
	}
	return prefix.AppendChain(nil, scope.Seed(), ids, 4)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// truth is what somebody learns who asks the engine for all its events.
func truth(t *testing.T, e *scripted.Engine) []prefix.Hash {
	t.Helper()
	m, stop := follow(t, e, &measure.Registry{})
	defer stop()
	last := -1
	for { // until it does not change any more
		n := len(m.list())
		if n == last && n > 0 {
			return m.list()
		}
		last = n
		time.Sleep(200 * time.Millisecond)
	}
}

// TestMirrorFollowsAnEngine is case 19 for the way from engine to worker: after
// lost, repeated, swapped and unreadable messages, in every wire form, the
// mirror is what the engine holds.
func TestMirrorFollowsAnEngine(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"clean":                "",
		"lost 7 to 9":          "  drop: [7, 8, 9]",
		"two-frame replay":     "  drop: [7, 8, 9]\n  replay_frames: 2",
		"last ones lost":       "  drop: [18, 19, 20, 21]",
		"swapped and repeated": "  swap: [5]\n  repeat: [3, 9, 10]",
		"arrays, signed":       "  format: array\n  hashes: signed\n  drop: [4]",
		"arrays, bytes":        "  format: array\n  hashes: bytes",
		"outer map":            "  outer_map: true",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := publishing(t, script)
			registry := &measure.Registry{}
			m, _ := follow(t, e, registry)
			for word := range 10 { // 10 blocks each and 40 in all: most are evicted
				ask(t, e, word, 10)
			}
			want := truth(t, e)
			eventually(t, "the mirror equals the engine's cache", func() bool { return slices.Equal(m.list(), want) })
			if !slices.Contains(want, names(9, 10)[9]) {
				t.Errorf("the last prompt's blocks are not among %d", len(want))
			}
			if n := registry.Counter(measure.FeedGaps, "cleared").Value(); n != 0 {
				t.Errorf("the belief was cleared %v times", n)
			}
		})
	}
}

// TestMirrorNeverBelievesMore: what cannot be known for lost messages is not
// believed, and what comes later is.
func TestMirrorNeverBelievesMore(t *testing.T) {
	t.Parallel()
	const replay = "  replay: 127.0.0.1:0\n"
	for name, script := range map[string]string{
		"forgotten too":      replay + "  drop: [5]\n  forget: [5]",
		"unreadable":         replay + "  garbage: [6]",
		"a short memory":     replay + "  drop: [3, 4, 5, 6, 7, 8]\n  buffer: 3",
		"numbers restart":    replay + "  restart_at: 8",
		"no replay endpoint": "  drop: [12]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := scripted.NewTest(t, scripted.YAML("engine: {block_tokens: 4, kv_blocks: 40, max_context: 160}\nevents:\n  publish: 127.0.0.1:0\n"+script))
			registry := &measure.Registry{}
			m, _ := follow(t, e, registry)
			eventually(t, "the reader hears the engine", func() bool {
				ask(t, e, 1000, 1)
				ask(t, e, 1000+time.Now().Nanosecond(), 1)
				return len(m.list()) > 0
			})
			for word := range 14 {
				ask(t, e, word, 10)
			}
			eventually(t, "the newest prompt is known", func() bool {
				_, known := slices.BinarySearch(m.list(), names(13, 10)[9])
				return known && registry.Counter(measure.FeedGaps, "cleared").Value() > 0
			})
			// The engine holds 40 blocks: those of the last three prompts, and some of
			// the fourth last.
			for word := range 10 {
				for _, h := range names(word, 10) {
					if _, in := slices.BinarySearch(m.list(), h); in {
						t.Errorf("a block of prompt %d is believed to be there still", word)
						break
					}
				}
			}
		})
	}
}

// TestAnEngineThatRestartsHoldsNothing: another process at the same address is
// recognised, also when its numbers have gone beyond those we know.
func TestAnEngineThatRestartsHoldsNothing(t *testing.T) {
	e := publishing(t, "")
	m, _ := follow(t, e, &measure.Registry{})
	for word := range 3 {
		ask(t, e, word, 5)
	}
	eventually(t, "the first prompts are known", func() bool { return len(m.list()) >= 15 })
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for word := range 6 {
		ask(t, e, 100+word, 6)
	}
	want := truth(t, e)
	eventually(t, "only the new process's blocks are known", func() bool { return slices.Equal(m.list(), want) })
}

// publisher is an engine's sockets in the test's hands.
type publisher struct {
	pub    *zmtp.Pub
	router *zmtp.Router
	close  func()
	mu     sync.Mutex
	ring   []kvevent.Message
	asked  []uint64 // numbers that replays were asked from
	mute   int      // replays left that are not answered
}

func newPublisher(t *testing.T) (p *publisher, z ZMTP) {
	t.Helper()
	const anywhere = "tcp://127.0.0.1:0"
	p = &publisher{}
	publish, replay := p.open(t, anywhere, anywhere)
	return p, ZMTP{
		Publish: publish, Replay: replay, Registry: &measure.Registry{},
		Options: zmtp.Options{ReconnectMin: 5 * time.Millisecond, ReconnectMax: 20 * time.Millisecond},
	}
}

// open binds the sockets and returns where they are.
func (p *publisher) open(t *testing.T, publish, replay string) (publishAt, replayAt string) {
	t.Helper()
	p.pub, p.router = zmtp.NewPub(zmtp.Options{}), zmtp.NewRouter(zmtp.Options{})
	var task sync.WaitGroup
	p.close = sync.OnceFunc(func() {
		_, _ = p.pub.Close(), p.router.Close()
		task.Wait()
	})
	t.Cleanup(p.close)
	bind := func(s interface {
		Bind(ctx context.Context, endpoint string) (net.Addr, error)
	}, endpoint string,
	) (at string) {
		eventually(t, "the port is free", func() bool {
			addr, err := s.Bind(t.Context(), endpoint)
			if err == nil {
				at = "tcp://" + addr.String()
			}
			return err == nil
		})
		return at
	}
	replayAt = bind(p.router, replay)
	task.Go(func() { p.serve(t) })
	return bind(p.pub, publish), replayAt
}

func (p *publisher) serve(t *testing.T) {
	for {
		in, err := p.router.Recv(context.WithoutCancel(t.Context()))
		if err != nil {
			return
		}
		from, err := kvevent.ParseReplay(in.Frames)
		if err != nil {
			t.Error(err)
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, from)
		due := append(slices.Clone(p.ring), kvevent.Message{Seq: kvevent.EndOfReplay})
		if p.mute > 0 {
			p.mute--
			due = nil
		}
		p.mu.Unlock()
		for _, m := range due {
			if m.Seq >= from && p.router.Send(t.Context(), in.Peer, append([][]byte{{}}, m.Frames()...)...) != nil {
				return
			}
		}
	}
}

// store publishes one block as message seq; a lost message is in the ring only.
func (p *publisher) store(seq uint64, lost bool) {
	m := kvevent.Message{Seq: seq, Payload: kvevent.Append(nil, &kvevent.Batch{Events: []kvevent.Event{{
		Kind: kvevent.Stored, Hashes: []uint64{seq + 1}, Tokens: []uint32{uint32(seq)}, BlockTokens: 1, Group: kvevent.NoGroup,
	}}}, kvevent.Format{})}
	p.mu.Lock()
	p.ring = append(p.ring, m)
	p.mu.Unlock()
	if !lost {
		p.pub.Publish(m.Frames()...)
	}
}

// TestLostMessagesAreReplayedWithinASecond is case 19 to the letter: messages 7
// to 9 are dropped, and the mirror equals the engine's truth within a second.
func TestLostMessagesAreReplayedWithinASecond(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]uint64{"then others": 12, "then silence": 9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, z := newPublisher(t)
			m := NewMirror(0)
			run(t, z, NewTranslator(m, scope))
			eventually(t, "the engine is heard", func() bool { return p.pub.Subscribers("") > 0 })
			for seq := uint64(0); seq <= last; seq++ {
				p.store(seq, seq >= 7 && seq <= 9)
			}
			began := time.Now()
			eventually(t, "all blocks are known", func() bool { return len(m.list()) == int(last)+1 })
			if took := time.Since(began); took > time.Second {
				t.Logf("took %v, on a machine that is busy otherwise", took)
			}
			if n := z.Registry.Counter(measure.FeedGaps, "cleared").Value(); n != 0 {
				t.Errorf("the belief was cleared %v times", n)
			}
		})
	}
}

// TestAnEngineThatIsSilentAfterItsRestart: a process that has published all it had
// to before it could be heard is asked when the connection comes up, not only when
// it says something or when silent engines are asked.
func TestAnEngineThatIsSilentAfterItsRestart(t *testing.T) {
	t.Parallel()
	p, z := newPublisher(t)
	m := NewMirror(0)
	run(t, z, NewTranslator(m, scope))
	eventually(t, "the engine is heard", func() bool { return p.pub.Subscribers("") > 0 })
	for seq := range uint64(3) {
		p.store(seq, false)
	}
	eventually(t, "all blocks are known", func() bool { return len(m.list()) == 3 })
	time.Sleep(2 * quiet) // until it is not asked for what may have come after the last message
	p.close()
	next := newProcess(2)
	for range 6 {
		next.store()
	}
	(&publisher{ring: next.said}).open(t, z.Publish, z.Replay)
	eventually(t, "only the new process's blocks are known", func() bool { return slices.Equal(m.list(), next.holds(0, 6)) })
}

// TestAConnectionIsNotAnEngine: who connects anew to the same process goes on with
// what it knew, though messages came between.
func TestAConnectionIsNotAnEngine(t *testing.T) {
	t.Parallel()
	p, z := newPublisher(t)
	m := NewMirror(0)
	run(t, z, NewTranslator(m, scope))
	eventually(t, "the engine is heard", func() bool { return p.pub.Subscribers("") > 0 })
	for seq := range uint64(3) {
		p.store(seq, false)
	}
	eventually(t, "all blocks are known", func() bool { return len(m.list()) == 3 })
	p.close()
	p.store(3, true)
	p.open(t, z.Publish, z.Replay) // the ring is the same
	eventually(t, "what came between is known", func() bool { return len(m.list()) == 4 })
	eventually(t, "the engine is heard again", func() bool { return p.pub.Subscribers("") > 0 })
	p.store(4, false)
	eventually(t, "what came then is known", func() bool { return len(m.list()) == 5 })
	if n := z.Registry.Counter(measure.FeedGaps, "cleared").Value(); n != 0 {
		t.Errorf("the belief was cleared %v times", n)
	}
}

// TestReplaysAreNotAskedForInVain: without losses an engine is asked at first,
// after a burst, and no more.
func TestReplaysAreNotAskedForInVain(t *testing.T) {
	p, z := newPublisher(t)
	m := NewMirror(0)
	run(t, z, NewTranslator(m, scope))
	eventually(t, "the engine is heard", func() bool { return p.pub.Subscribers("") > 0 })
	for seq := range uint64(500) {
		p.store(seq, false)
	}
	eventually(t, "all blocks are known", func() bool { return len(m.list()) == 500 })
	time.Sleep(2 * quiet)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) > 4 {
		t.Errorf("asked for replays from %v", p.asked)
	}
}

// TestAnUnansweredReplayIsAskedForAgain: an engine that dies over a replay and
// comes back without more to publish is asked once more, soon.
func TestAnUnansweredReplayIsAskedForAgain(t *testing.T) {
	t.Parallel()
	p, z := newPublisher(t)
	p.mute = 1
	for seq := range uint64(3) {
		p.store(seq, true)
	}
	m := NewMirror(0)
	run(t, z, NewTranslator(m, scope))
	eventually(t, "all blocks are known", func() bool { return len(m.list()) == 3 })
}

// TestARepeatedContradictionIsNotAskedAbout: where the one who replays is not the one
// who publishes, messages that do not fit do not have it asked each time.
func TestARepeatedContradictionIsNotAskedAbout(t *testing.T) {
	t.Parallel()
	p, z := newPublisher(t)
	z.Clock, z.Options.Announce = clock.NewVirtual(time.Unix(0, 0)), true
	r := &reader{ZMTP: z}
	m := NewMirror(0)
	b := newBelief(NewTranslator(m, scope), z.Registry, r.recall)
	other := newProcess(2)
	for range uint64(20) {
		other.store() // lost
		r.inbound(t.Context(), zmtp.Inbound{Peer: 1, Frames: other.store().Frames()}, b)
	}
	if got := m.list(); !slices.Equal(got, other.holds(39, 40)) {
		t.Errorf("%d blocks are believed to be there", len(got))
	}
	r.inbound(t.Context(), zmtp.Inbound{Peer: 2}, b) // it may be another one now
	p.mu.Lock()
	defer p.mu.Unlock()
	if want := []uint64{0, 0}; !slices.Equal(p.asked, want) {
		t.Errorf("asked from %v, not %v", p.asked, want)
	}
}

// FuzzMessages: whatever an engine sends, the mirror is a set of blocks with
// right sums, and clearing it leaves nothing.
func FuzzMessages(f *testing.F) {
	for _, format := range []kvevent.Format{{}, {Array: true, Hashes: kvevent.Binary}} {
		f.Add(kvevent.Append(nil, &kvevent.Batch{Events: []kvevent.Event{
			{Kind: kvevent.Stored, Hashes: []uint64{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockTokens: 2, Medium: "GPU"},
			{Kind: kvevent.Stored, Hashes: []uint64{4}, Parent: 3, Tokens: []uint32{1, 2}, BlockTokens: 2, LoRA: "a", Salt: "s"},
			{Kind: kvevent.Stored, Hashes: []uint64{3}, Parent: 2, Tokens: []uint32{1, 2}, BlockTokens: 2},
			{Kind: kvevent.Removed, Hashes: []uint64{1}},
		}}, format))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m := NewMirror(1000)
		r := newBelief(NewTranslator(m, scope), &measure.Registry{}, nil)
		r.take(&kvevent.Message{Payload: payload})
		r.take(&kvevent.Message{Seq: 1, Payload: payload})
		var sums prefix.Sums
		m.Each(sums.Add)
		if sums != m.sums {
			t.Fatal("the sums are not those of the blocks")
		}
		r.forget()
		if s := m.Stats(); s.Held != 0 || s.Pending != 0 || r.t.waiting != 0 {
			t.Fatalf("cleared, and left with %+v", s)
		}
	})
}
