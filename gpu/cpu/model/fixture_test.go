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

// greedy continues every fixture's prompt by n tokens, all in one batch. force,
// when not nil, gives the tokens to continue with instead of the model's own.
// see gets each step's logits.
func greedy(t *testing.T, m *Model, list []fixture, n int, force [][]int32, see func(seq, step int, logits []float32)) [][]int32 {
	t.Helper()
	r := newRig(t, m, 16, 300)
	ids := make([][]int32, len(list))
	seqs := make([]sequence, len(list))
	for i := range list {
		seqs[i].tokens = slices.Clone(list[i].PromptIDs)
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
			ids[i] = append(ids[i], id)
			if force != nil {
				id = force[i][step]
			}
			seqs[i].tokens = append(seqs[i].tokens, id)
		}
	}
	return ids
}

// closeCall is the margin below which another order of additions may decide
// otherwise.
const closeCall = 0.02

func TestExactEqualsReference(t *testing.T) {
	m := open(t, modelPath(t), Options{Exact: true})
	list := fixtures(t)
	force := make([][]int32, len(list))
	for i := range list {
		force[i] = list[i].Ref.IDs
	}
	steps := 64
	if testing.Short() {
		steps = 8
	}
	worst := 0.0
	ids := greedy(t, m, list, steps, force, func(seq, step int, logits []float32) {
		if step > 0 {
			return
		}
		for _, top := range list[seq].Ref.FirstTop5 {
			worst = max(worst, math.Abs(float64(logits[top.ID])-top.Logit))
		}
	})
	t.Logf("largest difference of a first step's logits: %.5f", worst)
	if worst > 0.02 {
		t.Errorf("first step's logits differ by %v", worst)
	}
	for i := range list {
		for step, id := range ids[i] {
			if want := list[i].Ref.IDs[step]; id != want && list[i].Ref.Margins[step] >= closeCall {
				t.Errorf("prompt %d step %d: token %d, want %d (margin %v)", i, step, id, want, list[i].Ref.Margins[step])
			}
		}
	}
}

// TestFastStaysClose judges the fast mode's own greedy text by the exact mode,
// which TestExactEqualsReference ties to the reference.
func TestFastStaysClose(t *testing.T) {
	path, list := modelPath(t), fixtures(t)
	steps := 64
	if testing.Short() {
		steps = 8
	}
	ids := greedy(t, open(t, path, Options{}), list, steps, nil, nil)
	maxRank, maxGap := 0, 0.0
	greedy(t, open(t, path, Options{Exact: true}), list, steps, ids, func(seq, step int, logits []float32) {
		id := ids[seq][step]
		rank := 0
		for _, l := range logits {
			if l > logits[id] {
				rank++
			}
		}
		gap := float64(logits[argmax(logits)] - logits[id])
		maxRank, maxGap = max(maxRank, rank), max(maxGap, gap)
		if rank > 3 || gap > 0.6 {
			t.Errorf("prompt %d step %d: token %d has rank %d and gap %.3f", seq, step, id, rank, gap)
		}
	})
	t.Logf("largest rank %d, largest gap %.3f", maxRank, maxGap)
}
