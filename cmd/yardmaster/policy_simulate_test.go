package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/sim"
)

// A share of which nothing is known is left out, and one of 0 is not.
func TestComparisonAsJSON(t *testing.T) {
	for _, tt := range []struct {
		differs float64
		want    string
	}{{math.NaN(), `"parted":0.5}`}, {0, `"parted":0.5,"differs":0}`}, {0.25, `"parted":0.5,"differs":0.25}`}} {
		c := comparison{Candidate: simulated{Report: &sim.Report{}}, Against: simulated{Report: &sim.Report{}}, Differs: tt.differs, Parted: .5}
		got, err := json.Marshal(&c)
		if err != nil || !strings.HasSuffix(string(got), tt.want) || strings.Count(string(got), "differs") != strings.Count(tt.want, "differs") {
			t.Errorf("%v: %s, %v", tt.differs, got, err)
		}
	}
}

// Times are in milliseconds, as in the table, and nothing beside them is lost.
func TestSimulatedTimes(t *testing.T) {
	text, err := json.Marshal(simulated{Policy: "a", Report: &sim.Report{Requests: 3, First: sim.Times{P50: 1500 * time.Microsecond}}})
	if err != nil || !strings.Contains(string(text), `"p50_ms":1.5`) || !strings.Contains(string(text), `"policy":"a"`) || !strings.Contains(string(text), `"requests":3`) {
		t.Errorf("%s, %v", text, err)
	}
}
