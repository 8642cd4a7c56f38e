package hub

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// What gateways count reaches whoever leads, its own gateway's count among it, and
// goes with them.
func TestTrafficReachesTheLeader(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		meters := []*traffic.Meter{traffic.NewMeter(), traffic.NewMeter(), traffic.NewMeter()}
		arrive := func(node int, n float64) { r.nodes[node].registry.Counter(measure.Arrivals, "m").Add(n) }
		arrivals := func(node int) (float64, bool) {
			served, known := meters[node].Read(r.nodes[node].server.cfg.Traffic)
			if served["m"] == nil {
				return 0, known
			}
			return served["m"].Arrivals, known
		}
		for i := range r.nodes {
			arrive(i, 1000)
		}
		pass(3 * time.Second)
		if _, known := arrivals(0); known {
			t.Error("rates are known of one look")
		}
		for range 10 {
			arrive(0, 1)
			arrive(1, 2)
			arrive(2, 4)
			pass(time.Second)
		}
		// The last words of the two looks are whole reports apart.
		if got, known := arrivals(0); !known || got < 6.5 || got > 7.5 {
			t.Errorf("%v arrivals/s, %v, want about 7", got, known)
		}
		if _, known := arrivals(1); known {
			t.Error("a node that does not lead knows of traffic")
		}
		r.nodes[2].die()
		pass(2 * patience)
		arrivals(0)
		for range 10 {
			arrive(0, 1)
			arrive(1, 2)
			pass(time.Second)
		}
		if got, _ := arrivals(0); got < 2.8 || got > 3.2 {
			t.Errorf("%v arrivals/s without the third gateway, want about 3", got)
		}
		r.leader.Store(1)
		pass(3 * time.Second)
		arrivals(1)
		for range 10 {
			arrive(0, 1)
			arrive(1, 2)
			pass(time.Second)
		}
		if got, known := arrivals(1); !known || got < 2.8 || got > 3.2 {
			t.Errorf("%v arrivals/s at the new leader, %v, want about 3", got, known)
		}
		if _, known := arrivals(0); known {
			t.Error("the leader of before still knows of traffic")
		}
	})
}

func TestTrafficOnTheWire(t *testing.T) {
	first := make([]uint64, len(measure.TTFT.Buckets)+1)
	first[3] = 9
	want := []traffic.Totals{{Model: "m", Arrivals: 1, Prompt: 2, Cached: 3, Output: 4, Waiting: 5, First: first}, {Model: "n"}}
	got, err := toTotals(fromTotals(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	many := &hub.Traffic{Models: make([]*hub.Totals, traffic.MaxModels+1)}
	for name, bad := range map[string]*hub.Traffic{
		"too many models":  many,
		"no name":          {Models: []*hub.Totals{{}}},
		"nothing":          {Models: []*hub.Totals{nil}},
		"half a histogram": {Models: []*hub.Totals{{Model: "m", Between: []uint64{1}}}},
		"a long name":      {Models: []*hub.Totals{{Model: strings.Repeat("m", 4096)}}},
	} {
		if _, err := toTotals(bad); !errors.Is(err, traffic.ErrReport) || errors.Is(err, load.ErrVector) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
