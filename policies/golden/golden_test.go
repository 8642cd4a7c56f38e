package golden_test

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/policies/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const admission = "../../plugins-sdk/examples/tenant-admission/"

// What is recorded is what is compared, and another expectation is named.
func TestRecordAndRun(t *testing.T) {
	wasm, file := read(t, admission+"c/policy.wasm"), read(t, admission+"golden.json")
	recorded, err := golden.Record(t.Context(), wasm, file)
	if err != nil || !bytes.Equal(recorded, file) {
		t.Errorf("recorded again, the file is another, %v", err)
	}
	wrong := bytes.Replace(file, []byte(`"action": "queue"`), []byte(`"action": "admit"`), 1)
	report, err := golden.Run(t.Context(), wasm, wrong)
	if err != nil || report.OK() || report.Policy != "tenant-admission@1.0.0" {
		t.Fatalf("%+v, %v", report, err)
	}
	if got := strings.Join(report.Cases[0].Problems, "\n"); got != `call 2: action "queue", expected "admit"` {
		t.Errorf("got %q", got)
	}
	if fuel := report.Cases[0].Fuel; fuel <= 0 || fuel > 10_000 {
		t.Errorf("used %d units", fuel)
	}
}

func TestFilesThatCannotBe(t *testing.T) {
	wasm := read(t, "../../plugins-sdk/examples/least-loaded/c/policy.wasm")
	column := func(text string) string { return `{"cases":[{"name":"x","calls":[{"columns":{` + text + `}}]}]}` }
	tests := []struct{ name, file, want string }{
		{"no JSON", `{`, "bad golden file"},
		{"unknown member", `{"case":[]}`, "unknown"},
		{"no calls", `{"cases":[{"name":"x","calls":[]}]}`, "no calls"},
		{"other lengths", column(`"requests":[1],"queued_tokens":[1,2]`), "rows"},
		{"missing column", column(`"requests":[1]`), `"queued_tokens" is missing`},
		{"unknown column", column(`"request":[1]`), `reads no column "request"`},
		{"unknown param", `{"cases":[{"name":"x","params":{"w":1},"calls":[{}]}]}`, "not all of the params"},
		{"param out of range", `{"cases":[{"name":"x","params":{"token_seconds":7},"calls":[{}]}]}`, "above its max"},
		{"bad state", `{"cases":[{"name":"x","state":{"local":{"hex:0g":""}},"calls":[{}]}]}`, "state"},
		{"unknown field of the request", `{"cases":[{"name":"x","calls":[{"request":{"promt":1},"columns":{"requests":[],"queued_tokens":[],"prefill_seconds_per_token":[]}}]}]}`, "promt"},
		{"too many rows", `{"cases":[{"name":"x","calls":[{"rows":70000}]}]}`, "70000 rows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := golden.Run(t.Context(), wasm, []byte(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := golden.Run(t.Context(), wasm, make([]byte, golden.MostBytes+1)); !errors.Is(err, golden.ErrFile) {
		t.Errorf("got %v", err)
	}
}

// What an architecture would make a number of its own of is refused.
func TestNumbersThatAreNone(t *testing.T) {
	wasm := read(t, "../../examples/policies/session-pinning/policy.wasm")
	file := read(t, "../../examples/policies/session-pinning/golden.json")
	first := regexp.MustCompile(`"key_low": \[[0-9]+`)
	for _, number := range []string{"-1", "1e30", "4294967296", "1.5"} {
		_, err := golden.Run(t.Context(), wasm, first.ReplaceAll(file, []byte(`"key_low": [`+number)))
		if !errors.Is(err, golden.ErrFile) || !strings.Contains(err.Error(), "whole number") {
			t.Errorf("%s: %v", number, err)
		}
	}
}

// A policy that faults has answered so, and the next call gets a fresh instance.
func TestFaultsAreAnswers(t *testing.T) {
	p, err := golden.Load(t.Context(), read(t, "../../plugins-sdk/examples/queue-and-kv/c/policy.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Open(nil, golden.State{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		// Its 65,536 samples lie outside of the buffers: whatever it reads, it ends.
		got, _, err := s.Call(&golden.Call{Request: []byte(`{"pools":4000,"samples":4000000000}`)})
		if err == nil && got.Fault == "" {
			t.Error("no fault")
		}
	}
	if err := errors.Join(s.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(read(f, admission+"golden.json"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := golden.Parse(data)
		if err != nil {
			return
		}
		out, err := file.Format()
		if err != nil {
			t.Fatal(err)
		}
		again, err := golden.Parse(out)
		if err != nil {
			t.Fatalf("what was written is not read: %v\n%s", err, out)
		}
		if twice, err := again.Format(); err != nil || !bytes.Equal(out, twice) {
			t.Errorf("written twice, %v:\n%s\n%s", err, out, twice)
		}
	})
}
