package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPlays(t *testing.T) {
	plays, err := readPlays()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range plays {
		if p.About == "" {
			t.Errorf("%s does not say what it is about", name)
		}
		if !slices.Contains(common, name) {
			t.Errorf("%s is no case of the suites", name)
		}
	}
	w := plays["stream_cut"].Wire
	if w == nil || w.Error <= 0 || w.Error >= w.Whole || w.Whole >= w.Bytes {
		t.Errorf("the cut stream is laid out as %+v", w)
	}
}

func TestChunked(t *testing.T) {
	text, w := chunked("data: é\n\ndata: [DONE]\n\n")
	if want := "\r\n\r\na\r\ndata: é\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"; !strings.HasSuffix(text, want) {
		t.Errorf("got %q", text)
	}
	if w.Bytes != len(text) || !strings.HasSuffix(text[:w.Error], "[DONE]") || !strings.HasSuffix(text[:w.Whole], "[DONE]\n\n") {
		t.Errorf("%+v of %q", w, text)
	}
}

func TestReadOutcomes(t *testing.T) {
	good, err := readOutcomes(strings.NewReader(`{"case":"a","status":"pass","ms":1.5}` + "\n" + `{"case":"b","status":"fail","detail":"x"}` + "\n"))
	if err != nil || len(good) != 2 || good[0].Millis != 1.5 || good[1].Detail != "x" {
		t.Errorf("%+v, %v", good, err)
	}
	for _, bad := range []string{"Traceback", `{"case":"a","status":"fine"}`, `{"status":"pass"}`} {
		if _, err := readOutcomes(strings.NewReader(bad)); err == nil {
			t.Errorf("%s is taken for an outcome", bad)
		}
	}
}

func TestReport(t *testing.T) {
	everything := verdict{client: "x 1"}
	for _, name := range common {
		everything.cases = append(everything.cases, outcome{Case: name, Status: passed})
	}
	with := func(o outcome) verdict {
		v := everything
		v.cases = append(append([]outcome(nil), v.cases...), o)
		return v
	}
	tests := []struct {
		name           string
		v              verdict
		err            error
		failed, strict bool
		shows          string
	}{
		{"all pass", everything, nil, false, false, "x 1: "},
		{"one fails", with(outcome{Case: "extra", Status: failed, Detail: "no\nluck"}), nil, true, true, "fail extra: no\n"},
		{"one skips", with(outcome{Case: "models", Status: skipped, Detail: "not there"}), nil, false, false, "skip models: not there"},
		{"one is missing", verdict{client: "x 1", cases: everything.cases[1:]}, nil, true, true, "the suite has no such case"},
		{"no toolchain", verdict{client: "x"}, errUnavailable, false, true, "x: SKIPPED"},
		{"crash", verdict{client: "x"}, errors.New("boom"), true, true, "x: FAILED: boom"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := report{columns: []column{newColumn(suite{name: "x"}, tt.v, tt.err, 0)}}
			r.expect("")
			var text strings.Builder
			r.print(&text)
			if r.failed(false) != tt.failed || r.failed(true) != tt.strict || !strings.Contains(text.String(), tt.shows) {
				t.Errorf("failed: %v, %v when strict; shows\n%s", r.failed(false), r.failed(true), &text)
			}
		})
	}
}

func TestInstalled(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "a", "b")
	boom := errors.New("boom")
	if _, err := installed(cache, "x", []byte("1"), func(string) error { return boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	made := 0
	fill := func(into string) error {
		made++
		return os.WriteFile(filepath.Join(into, "f"), nil, 0o600)
	}
	first, err := installed(cache, "x", []byte("1"), fill)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := installed(cache, "x", []byte("1"), fill); err != nil || again != first || made != 1 {
		t.Errorf("%s, %v, made %d times", again, err, made)
	}
	if other, err := installed(cache, "x", []byte("2"), fill); err != nil || other == first || made != 2 {
		t.Errorf("%s, %v, made %d times", other, err, made)
	}
	left, err := fs.ReadDir(os.DirFS(cache), ".")
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestSuitesHaveTheCommonCases(t *testing.T) {
	for _, f := range []struct{ file, before, after string }{
		{"python/suite.py", "\ndef ", "():"}, {"node/suite.mjs", "\n  async ", "() {"}, {"go/main.go", `{"`, `", `},
	} {
		text, err := os.ReadFile(f.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range common {
			if !strings.Contains(string(text), f.before+name+f.after) {
				t.Errorf("%s has no case %s", f.file, name)
			}
		}
	}
}
