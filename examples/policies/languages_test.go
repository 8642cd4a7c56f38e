package policies

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/golden"
)

const same = "../../plugins-sdk/examples"

// fuel is the one member in which they may differ: Go's code takes twenty times as much
// as C's, of which four lanes do what one does.
var fuel = regexp.MustCompile(`\n  "fuel": \d+,`)

// The manifests of one policy are the same in each language.
func TestManifestsAreTheSame(t *testing.T) {
	for _, name := range []string{"least-loaded", "kv-cost", "tenant-admission", "queue-and-kv"} {
		var first []byte
		for _, lang := range bind.Languages() {
			data, err := os.ReadFile(filepath.Join(same, name, string(lang), "manifest.json"))
			if err != nil {
				t.Fatal(err)
			}
			data = fuel.ReplaceAll(data, nil)
			if first == nil {
				first = data
			}
			if !bytes.Equal(first, data) {
				t.Errorf("%s in %s has another manifest", name, lang)
			}
		}
	}
}

// Four languages, one policy: the answers to thousands of random calls, state and
// counters included, are the same to the last bit.
func TestLanguagesDecideAlike(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		calls int
		next  func(*rand.Rand) *golden.Call
	}{
		{"least-loaded", 500, workers("queued_tokens", "prefill_seconds_per_token", "requests")},
		{"kv-cost", 500, workers("queued_tokens", "hit_tokens", "active_blocks", "requests")},
		{"tenant-admission", 3000, requests()},
		{"queue-and-kv", 1000, pools},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sessions := map[bind.Language]*golden.Session{}
			for _, lang := range languages() {
				sessions[lang] = open(t, filepath.Join(same, tt.name, string(lang)))
			}
			random := rand.New(rand.NewPCG(1, 2))
			answers, used := map[string]int{}, map[bind.Language]int64{}
			for k := range tt.calls {
				call := tt.next(random)
				want, fuel, err := sessions[bind.C].Call(call)
				if err != nil {
					t.Fatal(err)
				}
				used[bind.C] = max(used[bind.C], fuel)
				for _, lang := range languages() {
					if lang == bind.C {
						continue
					}
					got, fuel, err := sessions[lang].Call(call)
					if err != nil {
						t.Fatal(err)
					}
					used[lang] = max(used[lang], fuel)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("call %d, %d rows, %s: -c +%s:\n%.2000s", k, call.Rows, call.Request, lang, diff)
					}
				}
				answers[want.Action+want.Fault]++
				for _, reason := range want.Reason {
					answers[string(rune('0'+reason))]++
				}
			}
			t.Log(answers, "most fuel", used)
			if least := map[string]int{"tenant-admission": 3, "queue-and-kv": 6}[tt.name]; len(answers) < least {
				t.Errorf("the calls brought out %v only", answers)
			}
		})
	}
}

// languages are those that are compared.
func languages() []bind.Language {
	return slices.DeleteFunc(bind.Languages(), func(l bind.Language) bool { return raced && l == bind.Go })
}

// open starts a policy of the tree with its defaults.
func open(t *testing.T, dir string) *golden.Session {
	t.Helper()
	s, err := program(t, dir).Open(nil, golden.State{})
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// workers makes calls of routers.
func workers(columns ...string) func(*rand.Rand) *golden.Call {
	return func(random *rand.Rand) *golden.Call {
		c := &golden.Call{Rows: random.IntN(40), Columns: map[string][]*float64{}, Request: object(map[string]uint32{
			"prompt": random.Uint32N(200_000), "block_tokens": []uint32{0, 16, 48, 64}[random.IntN(4)],
		})}
		if random.IntN(20) == 0 {
			c.Rows = 4096
		}
		for _, name := range columns {
			scale := map[string]float64{"prefill_seconds_per_token": 0.001, "requests": 100}[name]
			if scale == 0 {
				scale = 100_000
			}
			c.Columns[name] = column(random, c.Rows, scale)
		}
		if c.Rows == 0 {
			c.Columns = map[string][]*float64{}
			for _, name := range columns {
				c.Columns[name] = []*float64{}
			}
		}
		return c
	}
}

// column has numbers of all sizes, whole ones, zeros and unknown ones.
func column(random *rand.Rand, rows int, scale float64) []*float64 {
	out := make([]*float64, rows)
	for i := range out {
		switch random.IntN(10) {
		case 0:
		case 1:
			out[i] = new(float64)
		case 2:
			out[i] = new(float64(int(random.Float64() * scale)))
		case 3:
			out[i] = new(random.Float64() * scale * 1000)
		default:
			out[i] = new(random.Float64() * scale)
		}
	}
	return out
}

// requests makes calls of admission policies, by few tenants, while time passes.
func requests() func(*rand.Rand) *golden.Call {
	now := int64(1_000_000)
	return func(random *rand.Rand) *golden.Call {
		now += int64(random.IntN(200)) - 5
		r := map[string]any{"tenant": random.IntN(4), "prompt": random.IntN(16_000), "class": random.IntN(400)}
		if random.IntN(3) > 0 {
			r["output"] = random.IntN(1000)
		}
		if random.IntN(4) == 0 {
			r["ttft_ms"], r["deadline_ms"] = float32(random.IntN(2000))/7, float32(random.IntN(4000))/3
		}
		return &golden.Call{NowMillis: now, Request: object(r)}
	}
}

// pools makes calls of autoscalers.
func pools(random *rand.Rand) *golden.Call {
	n, samples := 1+random.IntN(5), 1+random.IntN(6)
	c := &golden.Call{Columns: map[string][]*float64{}, Request: object(map[string]int{"pools": n, "samples": samples})}
	for name, scale := range map[string]float64{"replicas": 20, "ready": 20, "pending": 1.2, "queued": 40, "waiting": 40, "kv_usage": 1} {
		c.Columns[name] = column(random, n*samples, scale)
		for i, v := range c.Columns[name] {
			if v == nil {
				continue
			}
			if name != "kv_usage" {
				*v = float64(int(*v)) // counts are whole
			}
			if name == "pending" && random.IntN(3) > 0 {
				*v = 0
			}
			if random.IntN(4) == 0 && (name == "queued" || name == "waiting") {
				c.Columns[name][i] = new(0.0)
			}
		}
	}
	return c
}

func object(v any) jsontext.Value {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return data
}
