package fleet

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func valid() Worker {
	return Worker{ID: "w", Incarnation: "i", Role: RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "http://x"}
}

func TestValidateNamesEveryFault(t *testing.T) {
	w := valid()
	if err := w.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		want string
		edit func(*Worker)
	}{
		{"worker id is empty", func(w *Worker) { w.ID = "" }},
		{"id is longer", func(w *Worker) { w.ID = WorkerID(strings.Repeat("x", 129)) }},
		{"worker id has", func(w *Worker) { w.ID = "a b" }},
		{"worker id has", func(w *Worker) { w.ID = "a\nb" }},
		{"worker id has", func(w *Worker) { w.ID = `a"b` }},
		{"worker id has", func(w *Worker) { w.ID = "a'b" }},
		{"worker id has", func(w *Worker) { w.ID = `a\b` }},
		{"worker id has", func(w *Worker) { w.ID = "ä" }},
		{"worker id has", func(w *Worker) { w.ID = "a\x7f" }},
		{"worker id has", func(w *Worker) { w.ID = "a\xff" }},
		{"incarnation is empty", func(w *Worker) { w.Incarnation = "" }},
		{"role is not", func(w *Worker) { w.Role = 8 }},
		{"no model", func(w *Worker) { w.Models = nil }},
		{"model name is longer", func(w *Worker) { w.Models = []string{strings.Repeat("m", 513)} }},
		{"transfer endpoint", func(w *Worker) { w.Role = RolePrefill }},
		{"labels are not sorted", func(w *Worker) { w.Labels = []Label{{"b", ""}, {"a", ""}} }},
		{"label has no key", func(w *Worker) { w.Labels = []Label{{"", "x"}} }},
		{"capacity is negative", func(w *Worker) { w.Capacity.KVBlocks = -1 }},
		{"too long", func(w *Worker) { w.URL = strings.Repeat("u", 3000) }},
	}
	for _, tt := range tests {
		w := valid()
		tt.edit(&w)
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	var empty Worker
	if err := empty.Validate(); strings.Count(err.Error(), "\n") < 4 {
		t.Errorf("an empty worker has more faults than: %v", err)
	}
}

func TestViewMatchesItsWorkers(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(names, 0, 6, rapid.ID[string]).Draw(t, "ids")
		var workers []Worker
		for i, id := range ids {
			models := rapid.SliceOfN(names, 1, 3).Draw(t, "models") // twice the same, perhaps
			workers = append(workers, Worker{ID: WorkerID(id), Epoch: Epoch(i + 1), Models: models})
		}
		v := NewView(9, slices.Clone(workers))
		served := map[string]bool{}
		for _, w := range workers {
			i := v.Find(w.ID)
			if i < 0 || v.Workers[i].Epoch != w.Epoch || v.Current(w.ID, w.Epoch) != i || v.Current(w.ID, w.Epoch+1) != -1 {
				t.Fatalf("worker %q: Find = %d", w.ID, i)
			}
			for _, m := range w.Models {
				served[m] = true
				if n := countOf(v.Serving(m), int32(i)); n != 1 {
					t.Fatalf("%q stands %d times under model %q", w.ID, n, m)
				}
			}
		}
		if len(v.Models()) != len(served) || !slices.IsSorted(v.Models()) {
			t.Fatalf("models %v of %v", v.Models(), served)
		}
		if v.Find("zz") != -1 || v.Serving("zz") != nil {
			t.Fatal("found what is not there")
		}
	})
}

func countOf(list []int32, x int32) (n int) {
	for _, y := range list {
		if x == y {
			n++
		}
	}
	return n
}

func TestReadingsTellThreeStatesApart(t *testing.T) {
	tests := []struct {
		name string
		r    Reading
		want float64
		ok   bool
	}{
		{"absent", Reading{}, 0, false},
		{"zero", Report(0), 0, true},
		{"number", Report(2.5), 2.5, true},
		{"NaN", Report(math.NaN()), 0, false},
		{"infinite", Report(math.Inf(1)), 0, false},
	}
	for _, tt := range tests {
		if got, ok := tt.r.Usable(); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v", tt.name, got, ok)
		}
	}
}

func TestSamplesAreBoundToEpochs(t *testing.T) {
	at := time.Unix(1, 0)
	s := NewSamples([]Sample{{ID: "b", Epoch: 2, At: at}, {ID: "a", Epoch: 1, At: at}})
	if got, ok := s.Find("b", 2); !ok || got.ID != "b" {
		t.Errorf("Find(b, 2) = %+v, %v", got, ok)
	}
	if _, ok := s.Find("b", 1); ok {
		t.Error("found a sample of another epoch")
	}
	var none *Samples
	if _, ok := none.Find("b", 2); ok || none.All() != nil {
		t.Error("a nil set has samples")
	}
}

func TestParseRole(t *testing.T) {
	for _, r := range []Role{RolePrefill, RoleDecode, RoleBoth} {
		if got, err := ParseRole(r.String()); err != nil || got != r {
			t.Errorf("ParseRole(%q) = %v, %v", r, got, err)
		}
	}
	if _, err := ParseRole("unknown"); err == nil {
		t.Error("unknown is a role")
	}
}
