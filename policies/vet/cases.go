package vet

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

// pattern is what the columns and the request of a call are filled with.
type pattern int

const (
	zeros   pattern = iota
	largest         // the largest finite number, and all ones but the last
	unknown         // NaN and all ones
	random          // by the case's seed, some unknown
)

func (p pattern) String() string {
	return [...]string{"nothing but zeros", "the largest numbers", "unknown values", "random values"}[p]
}

// testCase is one call of a dry run.
type testCase struct {
	kind    abi.Kind
	rows    int // pools of an autoscaler
	samples int // of each pool; 1 for others
	pattern pattern
	seed    uint64
}

// String says what the call was, for a report.
func (c testCase) String() string {
	what := map[abi.Kind]string{abi.Router: "workers", abi.Autoscaler: "pools", abi.Observer: "outcomes"}[c.kind]
	if what == "" {
		return "a request of " + c.pattern.String()
	}
	return fmt.Sprintf("%d %s of %s", c.rows, what, c.pattern)
}

// The sizes of fleets, and how many random ones there are of the smaller sizes and of
// the largest.
const (
	randomEach    = 3
	randomLargest = 12
)

// cases are the calls of a dry run: each size with each pattern, the largest more
// often.
func cases(kind abi.Kind, room int) []testCase {
	sizes := []int{0, 1, 16, 4096}
	if kind == abi.Admission {
		sizes = []int{1}
	}
	var out []testCase
	seed := uint64(1)
	add := func(rows int, p pattern) {
		c := testCase{kind: kind, rows: rows, samples: 1, pattern: p, seed: seed}
		if kind == abi.Autoscaler && rows > 0 {
			// A ring of samples for each pool, as far as there is room.
			c.rows = min(rows, 64)
			c.samples = max(min(room, 4096)/c.rows, 1)
		}
		out = append(out, c)
		seed++
	}
	for _, n := range sizes {
		n = min(n, room)
		for _, p := range []pattern{zeros, largest, unknown} {
			add(n, p)
		}
		for range randomEach {
			add(n, random)
		}
	}
	for range randomLargest {
		add(min(sizes[len(sizes)-1], room), random)
	}
	return out
}

// answer is what came of a call, with enough to compare two engines by.
type answer struct {
	of         testCase
	fuel       int64
	unanswered bool
	useful     bool     // it has a score that is a number, where there are scores
	words      []uint32 // of output columns, or of the result; NaNs made equal
	effects    uint64   // a hash of all that the guest asked of the host so far
}

func (a *answer) differs(b *answer) string {
	switch {
	case a.unanswered != b.unanswered:
		return fmt.Sprintf("compiled code answered: %t, the interpreter: %t", !a.unanswered, !b.unanswered)
	case a.fuel != b.fuel:
		return fmt.Sprintf("compiled code used %d units of fuel, the interpreter %d", a.fuel, b.fuel)
	case a.effects != b.effects:
		return "compiled code and the interpreter logged, counted or stored different things"
	}
	for i := range a.words {
		if a.words[i] != b.words[i] {
			return fmt.Sprintf("word %d of the answer is %#x in compiled code and %#x in the interpreter", i, a.words[i], b.words[i])
		}
	}
	return ""
}

// call fills the guest's columns and asks it. A guest that says it has no answer has
// done nothing wrong.
func (c testCase) call(in *host.Instance, m *host.Metered) (answer, error) {
	rng := rand.New(rand.NewPCG(c.seed, 17)) //nolint:gosec // test data need no secrecy
	c.fill(in, m.Manifest, rng)
	c.request(in.Request(), m.Manifest, rng)
	in.Seed(c.seed)
	words, err := c.ask(in, m.Export())
	a := answer{of: c, fuel: in.Used(), words: words, useful: m.Export() != abi.ExportScore || finite(words)}
	if errors.Is(err, host.ErrRefused) || errors.Is(err, abi.ErrVerdict) {
		a.unanswered, err = true, nil
	}
	return a, err
}

// ask makes the call of the kind and returns its answer as words.
func (c testCase) ask(in *host.Instance, export string) ([]uint32, error) {
	switch export {
	case abi.ExportScore:
		scores, err := in.Score(c.rows)
		return canonical(scores), err
	case abi.ExportRoute:
		row, err := in.Route(c.rows)
		return []uint32{uint32(row)}, err
	case abi.ExportAdmit:
		v, err := in.Admit()
		return []uint32{uint32(v.Action), uint32(v.Priority), uint32(v.Status), v.RetryAfter}, err
	case abi.ExportTick:
		desired, reason, err := in.Tick(c.rows)
		return append(append([]uint32{}, desired...), reason...), err
	default:
		return nil, in.Observe(c.rows)
	}
}

// finite says whether one of the words is a number as f32.
func finite(words []uint32) bool {
	const exponent = 0x7f800000
	return slices.ContainsFunc(words, func(w uint32) bool { return w&exponent != exponent })
}

// canonical are the bits of numbers, with one NaN for all.
func canonical(v []float32) []uint32 {
	out := make([]uint32, len(v))
	for i, x := range v {
		out[i] = math.Float32bits(x)
		if x != x {
			out[i] = 0x7fc00000
		}
	}
	return out
}

// fill writes the columns.
func (c testCase) fill(in *host.Instance, m *abi.Manifest, rng *rand.Rand) {
	types := map[string]abi.Type{}
	for _, k := range m.Kind.Columns() {
		types[k.Name] = k.Type
	}
	for i, use := range m.Columns {
		n := min(c.rows*c.samples, in.Rows())
		if types[use.Name] == abi.U32 {
			fillWith(in.U32(i)[:n], 0, abi.UnknownU32-1, abi.UnknownU32, c.pattern, rng, func() uint32 { return rng.Uint32N(4) })
			continue
		}
		scale := math.Pow(10, float64(rng.IntN(7))-1)
		fillWith(in.F32(i)[:n], 0, math.MaxFloat32, float32(math.NaN()), c.pattern, rng, func() float32 {
			return float32(math.Floor(rng.Float64() * scale))
		})
	}
}

// fillWith writes a column by a pattern. One of eight random values is unknown in one
// of four columns.
func fillWith[T uint32 | float32](column []T, zero, most, unknowns T, p pattern, rng *rand.Rand, draw func() T) {
	gaps := p == random && rng.IntN(4) == 0
	for i := range column {
		switch {
		case p == zeros:
			column[i] = zero
		case p == largest:
			column[i] = most
		case p == unknown, gaps && rng.IntN(8) == 0:
			column[i] = unknowns
		default:
			column[i] = draw()
		}
	}
}
