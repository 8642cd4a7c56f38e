package hub

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// Whatever arrives is refused as ErrVector or taken in, at either end.
func FuzzMessages(f *testing.F) {
	var words hub.Samples
	addSample(&words, &fleet.Sample{Epoch: 2, At: time.Unix(99, 0), Stats: fleet.Stats{Running: fleet.Report(3), Waiting: fleet.Report(math.Inf(1))}}, time.Unix(100, 0))
	loads := &hub.Loads{Whole: true, Epoch: []uint64{1, 9}, Prefill: []uint32{1, 2}, Decode: []uint32{3, 4}, Prompt: []uint64{5, 6}, Context: []uint64{7, 8}}
	for _, m := range []proto.Message{
		&hub.ExchangeRequest{Hello: &hub.Hello{Gateway: "g", Incarnation: 1}, Loads: loads},
		&hub.ExchangeRequest{Traffic: &hub.Traffic{Models: []*hub.Totals{{Model: "m", Arrivals: 7, Waiting: 1}}}},
		&hub.ExchangeResponse{Loads: loads, Samples: &words, Gateways: 2, Heard: 7},
		&hub.ExchangeResponse{Loads: &hub.Loads{Epoch: []uint64{1}, Prefill: []uint32{math.MaxUint32}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	view := workers(4)
	f.Fuzz(func(t *testing.T, b []byte) {
		var up hub.ExchangeRequest
		if proto.Unmarshal(b, &up) == nil {
			feedLeader(t, view, &up)
		}
		var down hub.ExchangeResponse
		if proto.Unmarshal(b, &down) == nil {
			feedGateway(t, view, &down)
		}
	})
}

func feedLeader(t *testing.T, view *fleet.View, m *hub.ExchangeRequest) {
	switch news, err := toTotals(m.GetTraffic()); {
	case err == nil:
		page := traffic.NewBook().Open("g", 1)
		if err := page.Update(time.Unix(1, 0), news); err != nil {
			t.Fatal(err)
		}
	case !errors.Is(err, traffic.ErrReport):
		t.Fatal(err)
	}
	v, err := toVector(m.GetLoads(), 1)
	if err != nil {
		if !errors.Is(err, load.ErrVector) {
			t.Fatal(err)
		}
		return
	}
	merger := load.NewMerger()
	merger.Follow(view)
	from, err := merger.Join("from", 0, &load.Vector{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := merger.Join("to", 0, &load.Vector{})
	if err != nil {
		t.Fatal(err)
	}
	if err := from.Update(&v); err != nil && !errors.Is(err, load.ErrTooMany) {
		t.Fatal(err)
	}
	var out load.Vector
	if _, err := to.Take(&out); err != nil {
		t.Fatal(err)
	}
	if err := out.Validate(load.MaxGateways); err != nil {
		t.Fatalf("the leader would say what gateways refuse: %v", err)
	}
}

func feedGateway(t *testing.T, view *fleet.View, m *hub.ExchangeResponse) {
	table := load.NewTable(&measure.Registry{})
	slots := table.Columns(view).Slots
	if v, err := toVector(m.GetLoads(), load.MaxGateways); err == nil {
		table.SetOthers(&v)
	} else if !errors.Is(err, load.ErrVector) {
		t.Fatal(err)
	}
	table.Changes().Heard(m.GetHeard(), int(m.GetGateways()))
	for _, s := range slots {
		if s.Others() < 0 || s.Foreign() < 0 || s.QueuedPrompt() < 0 || s.Context() < 0 {
			t.Fatalf("%d others, %d foreign, %d queued, %d held", s.Others(), s.Foreign(), s.QueuedPrompt(), s.Context())
		}
	}
	if err := checkSamples(m.GetSamples()); err != nil {
		if !errors.Is(err, load.ErrVector) {
			t.Fatal(err)
		}
		return
	}
	b := inbox{ttl: time.Hour, rows: map[uint64]word{}}
	now := time.Unix(10_000, 0)
	b.put(m.GetSamples(), now)
	for _, s := range b.samples(view).All() {
		if s.At.After(now.Add(time.Microsecond)) {
			t.Fatalf("a word of %v at %v", s.At, now)
		}
	}
}
