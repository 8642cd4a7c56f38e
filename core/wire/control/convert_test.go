package control

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
)

func TestWorkerRoundTrip(t *testing.T) {
	full := fleet.Worker{
		ID: "w", Epoch: 7, Incarnation: "i", Role: fleet.RolePrefill, Engine: "cpu", Models: []string{"a", "b"},
		URL: "u", Transfer: "t", Compat: "c", Draining: true,
		Capacity: fleet.Capacity{KVBlocks: 1, BlockTokens: 2, MaxContext: 3, MaxRunning: 4},
		Labels:   []fleet.Label{{Key: "a", Value: "1"}, {Key: "b", Value: ""}},
	}
	for _, w := range []fleet.Worker{{}, full} {
		got, err := ToWorker(FromWorker(&w))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := ToWorker(&Worker{Role: 256}); err == nil {
		t.Error("role 256 became another role")
	}
	if w, err := ToWorker(nil); err != nil || w.Validate() == nil {
		t.Errorf("no worker: %+v, %v", w, err)
	}
}

func TestStatsKeepTheirThreeStates(t *testing.T) {
	in := fleet.Stats{Running: fleet.Report(0), Waiting: fleet.Reading{}, KVBlocksFree: fleet.Report(math.NaN()), DecodeStepSeconds: fleet.Report(0.01)}
	wire, err := proto.Marshal(FromStats(in))
	if err != nil {
		t.Fatal(err)
	}
	var m Stats
	if err := proto.Unmarshal(wire, &m); err != nil {
		t.Fatal(err)
	}
	out := ToStats(&m)
	if out.Running != fleet.Report(0) || out.Waiting.Known || out.PrefillTokensPerSecond.Known || out.DecodeStepSeconds != fleet.Report(0.01) {
		t.Errorf("%+v became %+v", in, out)
	}
	if !out.KVBlocksFree.Known || !math.IsNaN(out.KVBlocksFree.Value) {
		t.Errorf("NaN became %+v", out.KVBlocksFree)
	}
	if ToStats(nil) != (fleet.Stats{}) {
		t.Error("no stats are not nothing")
	}
}
