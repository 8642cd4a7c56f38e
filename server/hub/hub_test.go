package hub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exchanged is long enough for news to have come to all.
const exchanged = 2*every + time.Millisecond

// Each gateway sees what the others have, tokens included, and its own once.
func TestGatewaysKnowEachOther(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		pass(2 * settle)
		a := r.nodes[0].reserve(3, 1)
		b := r.nodes[1].reserve(3, 2)
		c := r.nodes[2].reserve(3, 4)
		pass(exchanged)
		r.others("all", 3, map[int]int{0: 6, 1: 5, 2: 3})
		s := r.nodes[1].slots()[3]
		if s.InFlight() != 2 || s.Foreign() != 5 || s.QueuedPrompt() != 700 || s.Context() != 1400 || s.OthersIn(load.Prefill) != 5 {
			t.Errorf("n1: %d own, %d foreign, %d queued, %d held", s.InFlight(), s.Foreign(), s.QueuedPrompt(), s.Context())
		}
		if g := r.nodes[1].metric(measure.HubGateways.Name); g != 3 {
			t.Errorf("%v gateways", g)
		}
		a()
		c()
		pass(exchanged)
		r.others("after the end of some", 3, map[int]int{0: 2, 1: 0, 2: 2})
		b()
		pass(exchanged)
		r.others("after the end of all", 3, map[int]int{0: 0, 1: 0, 2: 0})
	})
}

// What was there before a gateway joined is told at once, both ways.
func TestWholeVectorAtFirst(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		defer r.nodes[0].reserve(1, 3)()
		defer r.nodes[1].reserve(2, 4)()
		pass(settle + look + exchanged)
		r.others("joined", 2, map[int]int{0: 4, 1: 0})
		r.others("joined", 1, map[int]int{0: 0, 1: 3})
		for i, n := range r.nodes { // all was heard, so there is nothing to guess
			for w, s := range n.slots() {
				if s.Foreign() != s.Others() {
					t.Errorf("n%d guesses %d requests on worker %d", i, s.Foreign()-s.Others(), w)
				}
			}
		}
	})
}

// An idle hub says no more than that it is there.
func TestIdleHubIsQuiet(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(time.Second)
		count := func() float64 {
			return r.nodes[1].metric(measure.HubMessages.Name, "gateway", "sent") + r.nodes[1].metric(measure.HubMessages.Name, "gateway", "received")
		}
		before := count()
		pass(10 * time.Second)
		if n := count() - before; n < 70 || n > 90 {
			t.Errorf("%v messages in 10 s", n)
		}
	})
}

// However busy a gateway is, it sends a message each 5 ms.
func TestBusyHubIsPaced(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(time.Second)
		before := r.nodes[1].metric(measure.HubMessages.Name, "gateway", "sent")
		for range 5000 {
			r.nodes[1].reserve(1, 1)()
			time.Sleep(200 * time.Microsecond)
		}
		if n := r.nodes[1].metric(measure.HubMessages.Name, "gateway", "sent") - before; n < 190 || n > 205 {
			t.Errorf("%v messages in a second", n)
		}
	})
}

// The load of a gateway that dies vanishes at once; of one that stands still,
// after a second. Either way it comes back with the gateway, not twice.
func TestGatewayDies(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		pass(2 * settle)
		defer r.nodes[2].reserve(0, 5)()
		pass(exchanged)
		r.others("before", 0, map[int]int{0: 5, 1: 5})
		r.nodes[2].die()
		pass(exchanged)
		r.others("dead", 0, map[int]int{0: 0, 1: 0})
	})
}

func TestGatewayStandsStill(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		pass(2 * settle)
		defer r.nodes[2].reserve(0, 5)()
		defer r.nodes[1].reserve(0, 2)()
		pass(exchanged)
		held := r.nodes[2].last()
		held.hold()
		pass(patience - keepAlive - look)
		r.others("still", 0, map[int]int{0: 7, 1: 5, 2: 2})
		pass(keepAlive + 2*look)
		// Its own link has noticed too and has joined anew on another connection.
		r.others("back", 0, map[int]int{0: 7, 1: 5, 2: 2})
		r.nodes[2].down.Store(true)
		r.nodes[2].last().hold()
		pass(patience + 2*look)
		r.others("cut", 0, map[int]int{0: 2, 1: 0, 2: 0})
		if n := r.nodes[0].metric(measure.HubCuts.Name, "leader", "silent"); n < 1 {
			t.Errorf("%v streams cut for silence", n)
		}
		if n := r.nodes[2].metric(measure.HubCuts.Name, "gateway", "silent"); n != 2 {
			t.Errorf("%v streams cut by the gateway for silence", n)
		}
		if age := r.nodes[2].metric(measure.HubAge.Name); age < 1 {
			t.Errorf("the view is %v s old", age)
		}
	})
}

// When the leader dies others' load stays for at most a second. A new leader
// learns of all before it tells anybody, so nobody seems idle in between.
func TestLeaderDies(t *testing.T) {
	bubble(t, 4, func(t *testing.T, r *rig) {
		pass(2 * settle)
		for i := 1; i < 4; i++ {
			defer r.nodes[i].reserve(0, 1)()
		}
		pass(exchanged)
		r.others("before", 0, map[int]int{1: 2, 2: 2, 3: 2})
		r.nodes[0].die()
		r.leader.Store(-1)
		pass(300 * time.Millisecond)
		r.others("no leader", 0, map[int]int{1: 2, 2: 2, 3: 2})
		r.leader.Store(1)
		for range 60 { // no dip at any time
			pass(10 * time.Millisecond)
			r.others("new leader", 0, map[int]int{1: 2, 2: 2, 3: 2})
		}
		defer r.nodes[3].reserve(0, 3)()
		pass(exchanged)
		r.others("news", 0, map[int]int{1: 5, 2: 5, 3: 2})
		r.leader.Store(-1)
		pass(patience + look)
		r.others("alone", 0, map[int]int{1: 0, 2: 0, 3: 0})
		r.leader.Store(2)
		pass(settle + 2*look + exchanged)
		r.others("again", 0, map[int]int{1: 5, 2: 5, 3: 2})
	})
}

// A leader that stands still while another was elected is left at once; without
// another, after a second.
func TestLeaderStandsStill(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		pass(2 * settle)
		defer r.nodes[1].reserve(0, 1)()
		defer r.nodes[2].reserve(0, 1)()
		pass(exchanged)
		r.nodes[1].last().hold()
		r.nodes[2].last().hold()
		r.leader.Store(1)
		pass(settle + 2*look + longestPause)
		r.others("new leader", 0, map[int]int{1: 1, 2: 1})
		r.nodes[2].last().hold()
		r.nodes[1].down.Store(true)
		pass(patience + look)
		r.others("alone", 0, map[int]int{2: 0})
	})
}

// A gateway that reads nothing is cut, and keeps nobody else waiting.
func TestGatewayThatDoesNotRead(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(2 * settle)
		client, done := r.raw(0)
		defer done()
		stream, err := client.Exchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(hello("deaf")); err != nil {
			t.Fatal(err)
		}
		for cut := 0; r.nodes[0].metric(measure.HubCuts.Name, "leader", "stalled") == 0; cut++ {
			if cut > 100 {
				t.Fatal("not cut")
			}
			_ = stream.Send(&hub.ExchangeRequest{})
			for range 40 {
				words := make([]fleet.Sample, 8)
				for i := range words {
					words[i] = fleet.Sample{ID: fleet.WorkerID(fmt.Sprintf("w%02d", i)), Epoch: fleet.Epoch(i + 1), At: time.Now(), Stats: fleet.Stats{Running: fleet.Report(1)}}
				}
				r.nodes[0].samples.Store(fleet.NewSamples(words))
				r.nodes[1].reserve(1, 1)()
				pass(every)
			}
		}
		release := r.nodes[1].reserve(1, 1)
		pass(exchanged)
		r.others("others", 1, map[int]int{0: 1})
		release()
	})
}

func hello(name string) *hub.ExchangeRequest {
	return &hub.ExchangeRequest{Hello: &hub.Hello{Gateway: name, Incarnation: 7}, Loads: &hub.Loads{Whole: true}}
}

// raw is a client of a node's hub that follows no rules.
func (r *rig) raw(i int) (hub.HubClient, func()) {
	conn, err := r.nodes[i].ln.DialContext(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	client, err := clientOver(conn)
	if err != nil {
		r.t.Fatal(err)
	}
	return hub.NewHubClient(client), func() {
		if err := client.Close(); err != nil {
			r.t.Error(err)
		}
		_ = conn.Close()
	}
}

// Garbage is refused, the stream is cut and counted, and what the gateway had
// vanishes.
func TestGarbageIsRefused(t *testing.T) {
	loads := func(edit func(*hub.Loads)) *hub.ExchangeRequest {
		l := &hub.Loads{Epoch: []uint64{1}, Prefill: []uint32{1}, Decode: []uint32{1}, Prompt: []uint64{1}, Context: []uint64{1}}
		edit(l)
		return &hub.ExchangeRequest{Loads: l}
	}
	many := &hub.Loads{}
	for i := range load.MaxWorkers + 1 {
		many.Epoch = append(many.Epoch, uint64(i+1))
		many.Prefill, many.Decode = append(many.Prefill, 1), append(many.Decode, 1)
		many.Prompt, many.Context = append(many.Prompt, 1), append(many.Context, 1)
	}
	unknown := &hub.Loads{}
	for i := range load.MaxWorkers {
		unknown.Epoch = append(unknown.Epoch, uint64(1000+i))
		unknown.Prefill, unknown.Decode = append(unknown.Prefill, 1), append(unknown.Decode, 1)
		unknown.Prompt, unknown.Context = append(unknown.Prompt, 1), append(unknown.Context, 1)
	}
	tests := []struct {
		name   string
		first  *hub.ExchangeRequest
		second *hub.ExchangeRequest
		want   codes.Code
		reason string
	}{
		{"no hello", &hub.ExchangeRequest{}, nil, codes.InvalidArgument, "malformed"},
		{"no name", hello(""), nil, codes.InvalidArgument, "malformed"},
		{"a long name", hello(string(make([]byte, maxName+1))), nil, codes.InvalidArgument, "malformed"},
		{"not whole", &hub.ExchangeRequest{Hello: &hub.Hello{Gateway: "x"}}, nil, codes.InvalidArgument, "malformed"},
		{"a second hello", hello("x"), hello("x"), codes.InvalidArgument, "malformed"},
		{"a short column", hello("x"), loads(func(l *hub.Loads) { l.Decode = nil }), codes.InvalidArgument, "malformed"},
		{"a long column", hello("x"), loads(func(l *hub.Loads) { l.Context = append(l.Context, 1) }), codes.InvalidArgument, "malformed"},
		{"epoch 0", hello("x"), loads(func(l *hub.Loads) { l.Epoch[0] = 0 }), codes.InvalidArgument, "malformed"},
		{"too many requests", hello("x"), loads(func(l *hub.Loads) { l.Prefill[0] = math.MaxUint32 }), codes.InvalidArgument, "malformed"},
		{"too many tokens", hello("x"), loads(func(l *hub.Loads) { l.Prompt[0] = math.MaxUint64 }), codes.InvalidArgument, "malformed"},
		{"too many workers", hello("x"), &hub.ExchangeRequest{Loads: many}, codes.InvalidArgument, "malformed"},
		{"workers that nobody knows", hello("x"), &hub.ExchangeRequest{Loads: unknown}, codes.ResourceExhausted, "too_many"},
		{"an older incarnation", &hub.ExchangeRequest{Hello: &hub.Hello{Gateway: "n1"}, Loads: &hub.Loads{Whole: true}}, nil, codes.Aborted, "replaced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, r *rig) {
				pass(2 * settle)
				client, done := r.raw(0)
				defer done()
				stream, err := client.Exchange(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_ = stream.Send(tt.first)
				if tt.second != nil {
					_ = stream.Send(loads(func(*hub.Loads) {}))
					_ = stream.Send(tt.second)
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if status.Code(err) != tt.want {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				pass(exchanged)
				r.others("after", 0, map[int]int{0: 0, 1: 0})
				if n := r.nodes[0].metric(measure.HubCuts.Name, "leader", tt.reason); n != 1 {
					t.Errorf("%v streams cut as %s", n, tt.reason)
				}
				if n := r.nodes[0].server.Gateways(); n != 2 {
					t.Errorf("%d gateways", n)
				}
			})
		})
	}
}

// A node that does not lead adds nothing up.
func TestFollowerRefuses(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		client, done := r.raw(1)
		defer done()
		stream, err := client.Exchange(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	})
}

// A gateway that says nothing after it connected is cut as well.
func TestSilentStreamIsCut(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		client, done := r.raw(0)
		defer done()
		stream, err := client.Exchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err = stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		if d := time.Since(began); d > patience+look {
			t.Errorf("after %v", d)
		}
	})
}

// Only a node itself speaks for it.
func TestGatewayIsWhoItSays(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		r.nodes[0].server.cfg.Peer = func(context.Context) (string, bool) { return "y", true }
		for name, want := range map[string]codes.Code{"x": codes.PermissionDenied, "y": codes.OK} {
			client, done := r.raw(0)
			stream, err := client.Exchange(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(hello(name))
			if _, err = stream.Recv(); status.Code(err) != want {
				t.Errorf("%s: %v", name, err)
			}
			done()
			synctest.Wait()
		}
	})
}

// A gateway that joins again replaces itself: nothing counts twice.
func TestRejoiningGatewayCountsOnce(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(2 * settle)
		client, done := r.raw(0)
		defer done()
		join := func() hub.Hub_ExchangeClient {
			stream, err := client.Exchange(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m := hello("x")
			m.Loads = &hub.Loads{Whole: true, Epoch: []uint64{1}, Prefill: []uint32{3}, Decode: []uint32{0}, Prompt: []uint64{9}, Context: []uint64{9}}
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
			return stream
		}
		first := join()
		pass(exchanged)
		join()
		pass(exchanged)
		r.others("twice", 0, map[int]int{0: 3, 1: 3})
		var err error
		for err == nil {
			_, err = first.Recv()
		}
		if status.Code(err) != codes.Aborted {
			t.Error(err)
		}
	})
}

// What gateways have on an incarnation that is gone counts for nobody, and what
// comes early waits for the view.
func TestLoadBelongsToTheEpoch(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(2 * settle)
		release := r.nodes[1].reserve(0, 4)
		pass(exchanged)
		r.others("before", 0, map[int]int{0: 4})
		next := workers(8)
		list := next.Workers
		list[0].Epoch = 100
		r.view.Store(fleet.NewView(100, list))
		for _, n := range r.nodes {
			n.slots()
		}
		pass(exchanged)
		r.others("restarted", 0, map[int]int{0: 0})
		defer r.nodes[1].reserve(0, 1)()
		pass(exchanged)
		r.others("restarted", 0, map[int]int{0: 1})
		release()
		pass(exchanged)
		r.others("the old one's ended", 0, map[int]int{0: 1})
	})
}

// What workers say travels along, by age, bound to epochs, until it is too old.
func TestSamplesReachGateways(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		pass(2 * settle)
		said := time.Now().Add(-20 * time.Millisecond)
		stats := fleet.Stats{Running: fleet.Report(5), Waiting: fleet.Report(math.NaN()), KVBlocksFree: fleet.Report(0)}
		r.nodes[0].samples.Store(fleet.NewSamples([]fleet.Sample{
			{ID: "w01", Epoch: 2, At: said, Stats: stats}, {ID: "w02", Epoch: 99, At: said, Stats: stats},
		}))
		pass(samplesEvery + look + exchanged)
		for i, n := range r.nodes {
			got, ok := n.link.Samples().Find("w01", 2)
			if !ok || got.Stats.Running != stats.Running || got.Stats.KVBlocksFree != stats.KVBlocksFree || got.Stats.DecodeStepSeconds.Known || !math.IsNaN(got.Stats.Waiting.Value) {
				t.Fatalf("n%d: %+v, %v", i, got, ok)
			}
			if d := got.At.Sub(said); d < 0 || d > 5*time.Millisecond {
				t.Errorf("n%d: said at %v, taken for %v", i, said, got.At)
			}
		}
		one := r.nodes[1].link.Samples()
		if len(one.All()) != 1 {
			t.Errorf("%d samples of workers that are there", len(one.All()))
		}
		pass(time.Second)
		if r.nodes[1].link.Samples() != one {
			t.Error("another set although nothing is new")
		}
		pass(DefaultSampleTTL)
		if _, ok := r.nodes[1].link.Samples().Find("w01", 2); ok {
			t.Error("a word counts for ever")
		}
	})
}

// The leader's clock says nothing to a gateway, and a word told anew is not news.
func TestWordsAreOrdered(t *testing.T) {
	b := inbox{ttl: time.Minute, rows: map[uint64]word{}}
	now := time.Unix(1000, 0)
	view := workers(1)
	put := func(running float64, age time.Duration) time.Time {
		var m hub.Samples
		addSample(&m, &fleet.Sample{Epoch: 1, Stats: fleet.Stats{Running: fleet.Report(running)}, At: now.Add(-age)}, now)
		if err := checkSamples(&m); err != nil {
			t.Fatal(err)
		}
		b.put(&m, now)
		s, _ := b.samples(view).Find("w00", 1)
		return s.At
	}
	first := put(1, time.Second)
	if again := put(1, time.Second-50*time.Millisecond); !again.Equal(first) {
		t.Errorf("the same word is of %v, then of %v", first, again)
	}
	if other := put(2, 2*time.Second); !other.After(first) {
		t.Errorf("a word that came later is of %v, before %v", other, first)
	}
}

// A dialer that hangs, or fails, is tried again while the leader is the same, at
// most 200 ms apart.
func TestDialFailuresAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		l, err := NewLink(LinkConfig{
			Gateway: "g", Table: load.NewTable(&measure.Registry{}), View: func() *fleet.View { return workers(1) }, Registry: &measure.Registry{},
			Leader: func() (string, string, bool) { return "x", "1", false },
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				at = append(at, time.Now())
				if len(at) == 3 {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return nil, errors.New("refused")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		l.Run(ctx)
		for i := 1; i < len(at); i++ {
			most := longestPause
			if i == 3 {
				most += patience
			}
			if d := at[i].Sub(at[i-1]); d > most || d < firstPause/2 {
				t.Errorf("attempt %d after %v", i, d)
			}
		}
		if len(at) < 40 {
			t.Errorf("%d attempts", len(at))
		}
	})
}
