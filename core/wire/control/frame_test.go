package control

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/prefix"
)

func sampleFrames() []prefix.Frame {
	base := prefix.Frame{Worker: "w", Epoch: 7}
	delta, begin, part, end, sweep := base, base, base, base, prefix.Frame{Kind: prefix.FrameSweep}
	delta.Kind, delta.First, delta.Last, delta.Cleared = prefix.FrameDelta, 4, 7, true
	delta.Stores, delta.Removes, delta.Sum = []prefix.Hash{1, 1 << 63}, []prefix.Hash{5}, 99
	begin.Kind, begin.Repair = prefix.FrameBegin, 3
	begin.Buckets.Add(255)
	part.Kind, part.Repair, part.Part, part.Stores = prefix.FramePart, 3, 2, []prefix.Hash{9}
	end.Kind, end.Repair, end.Part, end.Last = prefix.FrameEnd, 3, 3, 7
	return []prefix.Frame{delta, begin, part, end, sweep}
}

func TestFramesSurviveTheWire(t *testing.T) {
	for _, f := range sampleFrames() {
		b, err := AppendFrame(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseFrame(b)
		if err != nil {
			t.Fatalf("%v: %v", &f, err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Errorf("%v changed:\n%s", &f, diff)
		}
	}
	big := prefix.Frame{Kind: prefix.FrameDelta, Worker: "w", Epoch: 1, First: 1, Last: prefix.MaxFrameBlocks, Stores: make([]prefix.Hash, prefix.MaxFrameBlocks)}
	b, err := AppendFrame(nil, &big)
	if err != nil || len(b) > 16<<10+64 {
		t.Errorf("the largest frame has %d bytes, %v", len(b), err)
	}
}

func TestPositionsSurviveTheWire(t *testing.T) {
	p := prefix.Position{Last: 3, Exact: true, Repair: 8}
	for range 2 {
		got, err := ToPosition(FromPosition(&p))
		if diff := cmp.Diff(p, got); diff != "" || err != nil {
			t.Errorf("%v, changed:\n%s", err, diff)
		}
		p.Sums.Add(5)
	}
	if _, err := ToPosition(&PrefixPosition{Sums: []uint64{1}}); !errors.Is(err, prefix.ErrMalformed) {
		t.Errorf("one sum: %v", err)
	}
}

// FuzzFrame: no bytes make a frame that is not valid, a state takes every valid
// one, and what was read is written again as it was.
func FuzzFrame(f *testing.F) {
	for _, frame := range sampleFrames() {
		b, err := AppendFrame(nil, &frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ParseFrame(b)
		if err != nil {
			if !errors.Is(err, prefix.ErrMalformed) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		if err := frame.Validate(); err != nil {
			t.Fatalf("read as valid: %v", err)
		}
		s := prefix.NewState(prefix.Options{Budget: 1 << 20, Workers: 4})
		s.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: frame.Worker, Epoch: frame.Epoch})
		s.Apply(&frame)
		first, err := AppendFrame(nil, &frame)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseFrame(first)
		if err != nil {
			t.Fatal(err)
		}
		if second, _ := AppendFrame(nil, &again); !bytes.Equal(first, second) {
			t.Fatal("the same frame has two encodings")
		}
	})
}
