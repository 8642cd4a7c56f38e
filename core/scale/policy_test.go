package scale

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/native/nativetest"
)

// sample is one with some fields set; the others are unknown.
func sample(set func(*Sample)) Sample {
	s := Unknown()
	set(&s)
	return s
}

// Every expectation is computed by hand from the formula of the type.
func TestPolicies(t *testing.T) {
	busy := func(ready, kv, waiting float64) Sample {
		return sample(func(s *Sample) { s.Ready, s.KVUsage, s.Waiting, s.Running, s.Arrivals = ready, kv, waiting, 1, 1 })
	}
	tests := []struct {
		name   string
		policy Policy
		role   fleet.Role
		sample Sample
		want   Want // without the reason
	}{
		{"target: 4 at 0.9 of 0.7 are 5.14", &Target{}, fleet.RoleBoth, busy(4, .9, 0), Want{Replicas: 6}},
		{"target: within tolerance", &Target{}, fleet.RoleBoth, busy(4, .75, 0), Want{Keep: true}},
		{"target: 4 at 0.3 are 1.71", &Target{}, fleet.RoleBoth, busy(4, .3, 0), Want{Replicas: 2}},
		{"target: queues mean full", &Target{}, fleet.RoleBoth, busy(4, .1, 9), Want{Replicas: 6}},
		{"target: prompts half cached, 2·8000·0.5/(2·5000)=0.8 is in tolerance of 0.8", &Target{Target: .8}, fleet.RolePrefill, sample(func(s *Sample) {
			s.Ready, s.PromptTokens, s.HitRatio, s.PrefillRate = 2, 16000, .5, 5000
		}), Want{Keep: true}},
		{"target: nothing known", &Target{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready = 3 }), Want{Keep: true}},
		{"asleep and nobody asks", &Target{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.Queued, s.Arrivals = 0, 0, 0 }), Want{Keep: true}},
		{"asleep and somebody asks", &Saturation{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.Queued = 0, 1 }), Want{Replicas: 1}},

		{"room: plenty with two, one goes", &Saturation{}, fleet.RoleBoth, busy(3, .3, 0), Want{Replicas: 2}},
		{"room: enough, but not with one less", &Saturation{}, fleet.RoleBoth, busy(2, .5, 0), Want{Keep: true}},
		{"room: 0.05 of KV left", &Saturation{}, fleet.RoleBoth, busy(4, .75, 0), Want{Replicas: 5}},
		{"room: none, 4·0.95/0.8 = 4.75", &Saturation{}, fleet.RoleBoth, busy(4, .95, 0), Want{Replicas: 5}},
		{"room: 40 wait at 4, 4·10/5 = 8", &Saturation{}, fleet.RoleBoth, busy(4, .2, 40), Want{Replicas: 8}},
		{"room: the last one, idle", &Saturation{}, fleet.RoleBoth, sample(func(s *Sample) {
			s.Ready, s.KVUsage, s.Waiting, s.Running, s.Arrivals = 1, 0, 0, 0, 0
		}), Want{Replicas: 0}},
		{"room: the last one, in use", &Saturation{}, fleet.RoleBoth, busy(1, 0, 0), Want{Keep: true}},
		{"tokens: 0.7·2·1000 + 4·100 = 1800 over 2000·0.8 are 2.25", &Saturation{Tokens: true}, fleet.RoleBoth, sample(func(s *Sample) {
			s.Ready, s.KVUsage, s.KVTokens, s.Waiting, s.PromptTokens, s.Arrivals = 2, .7, 1000, 4, 100, 1
		}), Want{Replicas: 3}},
		{"tokens: in between", &Saturation{Tokens: true}, fleet.RoleBoth, sample(func(s *Sample) {
			s.Ready, s.KVUsage, s.KVTokens = 2, .5, 1000
		}), Want{Keep: true}},
		{"tokens: 0.3·4 over 0.8 are 1.5, one goes at a time", &Saturation{Tokens: true}, fleet.RoleBoth, sample(func(s *Sample) {
			s.Ready, s.KVUsage, s.KVTokens = 4, .3, 1000
		}), Want{Replicas: 3}},

		{"sla: 8500/(5000·0.85) = 2", &SLA{Predict: Constant{}}, fleet.RolePrefill, sample(func(s *Sample) {
			s.Ready, s.PromptTokens, s.PrefillRate = 1, 8500, 5000
		}), Want{Replicas: 2}},
		{"sla: a prompt of 1000 takes 200 ms and took 100: half is cached", &SLA{Predict: Constant{}}, fleet.RolePrefill, sample(func(s *Sample) {
			s.Ready, s.PromptTokens, s.Arrivals, s.PrefillRate, s.FirstP50 = 1, 17000, 17, 5000, 100
		}), Want{Replicas: 2}},
		{"sla: slowness does not ask for more", &SLA{Predict: Constant{}}, fleet.RolePrefill, sample(func(s *Sample) {
			s.Ready, s.PromptTokens, s.Arrivals, s.PrefillRate, s.FirstP50 = 1, 8500, 8.5, 5000, 900
		}), Want{Replicas: 2}},
		{"sla: output, 40 ms instead of 20: half the rate, 850/(1000·0.5·0.85) = 2", &SLA{Predict: Constant{}}, fleet.RoleDecode, sample(func(s *Sample) {
			s.Ready, s.OutputTokens, s.DecodeRate, s.BetweenP50 = 1, 850, 1000, 40
		}), Want{Replicas: 2}},
		{"sla: both add up, 1 + 0.5", &SLA{Predict: Constant{}}, fleet.RoleBoth, sample(func(s *Sample) {
			s.Ready, s.PromptTokens, s.PrefillRate, s.OutputTokens, s.DecodeRate = 1, 4250, 5000, 425, 1000
		}), Want{Replicas: 2}},
		{"sla: no rate", &SLA{}, fleet.RolePrefill, sample(func(s *Sample) { s.Ready, s.PromptTokens = 1, 1 }), Want{Keep: true}},

		{"pressure: 1500 of 1000 ms, 2·1.5", &Backpressure{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.FirstP95 = 2, 1500 }), Want{Replicas: 3}},
		{"pressure: at most twice", &Backpressure{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.FirstP95 = 3, 9000 }), Want{Replicas: 6}},
		{"pressure: in the band", &Backpressure{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.FirstP95 = 2, 1100 }), Want{Keep: true}},
		{"pressure: 0.2, with one less 0.3", &Backpressure{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.FirstP95 = 3, 200 }), Want{Replicas: 2}},
		{"pressure: 0.5, with one less 1", &Backpressure{}, fleet.RoleBoth, sample(func(s *Sample) { s.Ready, s.FirstP95 = 2, 500 }), Want{Keep: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := &Window{Now: time.UnixMilli(1), Interval: time.Second, Pools: []Pool{{
				Key: Key{"m", tt.role}, Limits: Limits{First: time.Second, Between: 20 * time.Millisecond}, Samples: []Sample{tt.sample},
			}}}
			want := make([]Want, 1)
			tt.policy.Tick(w, want)
			if want[0].Reason == "" {
				t.Error("no reason")
			}
			want[0].Reason = ""
			if want[0] != tt.want {
				t.Errorf("got %+v, want %+v", want[0], tt.want)
			}
		})
	}
}

func TestPressureMustBeLowInTheWholeWindow(t *testing.T) {
	at := func(ms float64) Sample { return sample(func(s *Sample) { s.Ready, s.FirstP95 = 3, ms }) }
	for _, tt := range []struct {
		samples []Sample
		keep    bool
	}{
		{[]Sample{at(200), at(200)}, false},
		{[]Sample{at(800), at(200)}, true},
		{[]Sample{Unknown(), at(200)}, true},
	} {
		want := make([]Want, 1)
		(&Backpressure{}).Tick(&Window{Pools: []Pool{{Limits: Limits{First: time.Second}, Samples: tt.samples}}}, want)
		if want[0].Keep != tt.keep {
			t.Errorf("got %+v, want keep %v", want[0], tt.keep)
		}
	}
}

func TestPredictors(t *testing.T) {
	nan := math.NaN()
	tests := []struct {
		name      string
		predictor Predictor
		series    []float64
		least     float64
		most      float64
		known     bool
	}{
		{"constant", Constant{}, []float64{1, 2, nan}, 2, 2, true},
		{"constant, nothing known", Constant{}, []float64{nan}, 0, 0, false},
		{"trend goes on", Trend{}, []float64{10, 20, 30, 40}, 50, 50, true},
		{"trend, one value", Trend{}, []float64{nan, 7}, 7, 7, true},
		{"trend does not fall below nothing", Trend{}, []float64{9, 3}, 0, 0, true},
		{"kalman, steady", Kalman{}, []float64{5, 5, 5, 5}, 5, 5, true},
		{"kalman follows a rise", Kalman{}, []float64{10, 20, 30, 40, 50, 60}, 62, 75, true},
		{"kalman, nothing known", Kalman{}, nil, 0, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.predictor.Next(tt.series)
			if ok != tt.known || got < tt.least-1e-9 || got > tt.most+1e-9 {
				t.Errorf("got %v, %v; want %v to %v, %v", got, ok, tt.least, tt.most, tt.known)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	h, key := NewHistory(3), Key{"m", fleet.RoleBoth}
	for i := range 4 {
		h.Add(map[Key]Sample{key: {Ready: float64(i + 1)}})
		ring := h.Of(key)
		if len(ring) != 3 || ring[2].Ready != float64(i+1) {
			t.Fatalf("after %d: %v", i+1, ring)
		}
	}
	kept := h.Of(key)
	h.Add(map[Key]Sample{key: {Ready: 9}})
	if kept[2].Ready != 4 {
		t.Error("samples that were handed out changed")
	}
	h.Add(nil)
	if h.Of(key) != nil {
		t.Error("a pool that is gone is remembered")
	}
}

func TestPolicyNamed(t *testing.T) {
	for _, p := range append(Policies(), &Saturation{Tokens: true}) {
		if got, err := PolicyNamed(p.Name()); err != nil || got.Name() != p.Name() {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	if _, err := PolicyNamed("hope"); err == nil {
		t.Error("an unknown policy was found")
	}
}

// A parameter's stated default is what the policy does without it, and each
// parameter does something.
func TestTune(t *testing.T) {
	// wants are what a policy wants of pools of many kinds.
	wants := func(p Policy) string {
		var out []Want
		for n := range 400 {
			share := float64(n%20) / 20
			s := sample(func(s *Sample) {
				s.Ready, s.KVUsage, s.Waiting, s.Running, s.Arrivals = 4, share, float64(n/20), 1, 10
				s.KVTokens, s.PromptTokens, s.OutputTokens, s.HitRatio = 1000, 900*float64(n/20), 900*share, 0
				s.PrefillRate, s.DecodeRate = 1000, 400
			})
			w := &Window{Pools: []Pool{{Key: Key{Role: fleet.RoleBoth}, Samples: []Sample{s, s}}}}
			want := make([]Want, 1)
			p.Tick(w, want)
			want[0].Reason = ""
			out = append(out, want...)
		}
		return fmt.Sprint(out)
	}
	nativetest.Tune(t, Policies(), PolicyWith, wants)
	if p, err := PolicyNamed("sla(room=2)"); err == nil {
		t.Errorf("%+v", p)
	}
}
