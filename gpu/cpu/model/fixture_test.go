package model

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
)

type fixture struct {
	Kind      string  `json:"kind"`
	PromptIDs []int32 `json:"prompt_ids"`
	Ref       struct {
		IDs       []int32   `json:"ids"`
		Margins   []float64 `json:"margins"`
		FirstTop5 []struct {
			ID    int32   `json:"id"`
			Logit float64 `json:"logit"`
		} `json:"first_top5"`
	} `json:"ref_f32"`
}

func fixtures(t *testing.T) []fixture {
	t.Helper()
	b, err := os.ReadFile("testdata/greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []fixture
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// continued is a prompt and the tokens that a test continues it with.
type continued struct {
	prompt, ids []int32
}

// greedy continues every prompt by n tokens, all in one batch: by its ids if it
// has some, else by the model's own choice. see gets each step's logits.
func greedy(t *testing.T, m *Model, list []continued, n int, see func(seq, step int, logits []float32)) [][]int32 {
	t.Helper()
	r := newRig(t, m, 16, 600)
	chosen := make([][]int32, len(list))
	seqs := make([]sequence, len(list))
	for i := range list {
		seqs[i].tokens = slices.Clone(list[i].prompt)
	}
	for step := range n {
		var spans []batch.Span
		for i := range seqs {
			spans = append(spans, r.span(&seqs[i], len(seqs[i].tokens)-seqs[i].done, true))
		}
		for i, logits := range r.step(spans...) {
			if see != nil {
				see(i, step, logits)
			}
			id := argmax(logits)
			if list[i].ids != nil {
				id = list[i].ids[step]
			}
			chosen[i] = append(chosen[i], id)
			seqs[i].tokens = append(seqs[i].tokens, id)
		}
	}
	return chosen
}

// closeCall is the margin below which another order of additions may decide
// otherwise.
const closeCall = 0.02

// TestFixtures holds both modes to the reference. The exact mode, led along the
// reference's tokens, must choose each of them, but for close calls. The fast
// mode chooses for itself, and the exact mode, led along that path, judges how
// far each choice was from its own.
func TestFixtures(t *testing.T) {
	if raceEnabled {
		t.Skip("too slow under the race detector, which the small models exercise as well")
	}
	path, list := modelPath(t), fixtures(t)
	steps := 64
	if testing.Short() {
		steps = 8
	}
	var led []continued
	for i := range list {
		led = append(led, continued{prompt: list[i].PromptIDs})
	}
	fast := greedy(t, open(t, path, Options{}), led, steps, nil)
	for i := range list {
		led[i].ids = list[i].Ref.IDs
	}
	for i := range list {
		led = append(led, continued{list[i].PromptIDs, fast[i]})
	}
	var worst, gap float64
	var rank int
	greedy(t, open(t, path, Options{Exact: true}), led, steps, func(seq, step int, logits []float32) {
		if seq < len(list) {
			worst = max(worst, checkExact(t, &list[seq], step, logits))
			return
		}
		id := fast[seq-len(list)][step]
		r, g := rankOf(logits, id)
		if r > 3 || g > 0.6 {
			t.Errorf("fast mode, prompt %d step %d: token %d has rank %d and gap %.3f", seq-len(list), step, id, r, g)
		}
		rank, gap = max(rank, r), max(gap, g)
	})
	t.Logf("exact mode: first step's logits within %.5f; fast mode: rank up to %d, gap up to %.3f", worst, rank, gap)
}

// checkExact checks one step of the exact mode and returns the largest
// difference of a first step's logits.
func checkExact(t *testing.T, f *fixture, step int, logits []float32) (worst float64) {
	t.Helper()
	if step == 0 {
		for _, top := range f.Ref.FirstTop5 {
			worst = max(worst, math.Abs(float64(logits[top.ID])-top.Logit))
		}
		if worst > 0.02 {
			t.Errorf("first step's logits differ by %v", worst)
		}
	}
	if id, want := argmax(logits), f.Ref.IDs[step]; id != want && f.Ref.Margins[step] >= closeCall {
		t.Errorf("exact mode, step %d: token %d, want %d (margin %v)", step, id, want, f.Ref.Margins[step])
	}
	return worst
}

// rankOf is how many logits are above that of id, and by how much the highest.
func rankOf(logits []float32, id int32) (rank int, gap float64) {
	top := logits[id]
	for _, l := range logits {
		if l > logits[id] {
			rank++
			top = max(top, l)
		}
	}
	return rank, float64(top - logits[id])
}
