package control

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// framesToScan is one frame of each kind.
func framesToScan() []prefix.Frame {
	var some prefix.Buckets
	some.Add(7)
	return []prefix.Frame{
		{Kind: prefix.FrameAttach, Worker: "w-1", Epoch: 7},
		{Kind: prefix.FrameDelta, Worker: "w-1", Epoch: 7, First: 1, Last: 4, Cleared: true, Stores: []prefix.Hash{1, 2}, Removes: []prefix.Hash{3}, Sum: 9},
		{Kind: prefix.FrameBegin, Worker: "w-1", Epoch: 7, Repair: 1, Buckets: some},
		{Kind: prefix.FramePart, Worker: "w-1", Epoch: 7, Repair: 1, Part: 300, Stores: []prefix.Hash{1 << 63}},
		{Kind: prefix.FrameEnd, Worker: "w-2", Epoch: 7, Repair: 1, Part: 1, Last: 12, Sum: 1},
		{Kind: prefix.FrameDetach, Worker: "w-2", Epoch: 7},
		{Kind: prefix.FrameSweep},
	}
}

func TestScanFrameReadsWhatParseFrameReads(t *testing.T) {
	var got prefix.Frame
	for _, f := range framesToScan() {
		b, err := AppendFrame(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		if err := ScanFrame(b, &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(f, got, cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
	}
}

func TestScanFrameAllocatesNothing(t *testing.T) {
	f := prefix.Frame{Kind: prefix.FrameDelta, Worker: "worker-1", Epoch: 1, First: 1, Last: 1000, Stores: make([]prefix.Hash, 1000)}
	b, err := AppendFrame(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	var into prefix.Frame
	if n := testing.AllocsPerRun(100, func() {
		if err := ScanFrame(b, &into); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzScanFrame(f *testing.F) {
	for _, frame := range framesToScan() {
		b, err := AppendFrame(nil, &frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x39, 1, 0, 0, 0, 0, 0, 0, 0, 0x08, 3, 0x12, 1, 'w', 0x18, 1, 0x20, 1, 0x28, 1}) // a list that is not packed
	f.Fuzz(func(t *testing.T, b []byte) {
		want, wantErr := ParseFrame(b)
		got := prefix.Frame{Stores: make([]prefix.Hash, 3)}
		err := ScanFrame(b, &got)
		if (err == nil) != (wantErr == nil) || err != nil && !errors.Is(err, prefix.ErrMalformed) {
			t.Fatalf("ScanFrame: %v, ParseFrame: %v", err, wantErr)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); err == nil && d != "" {
			t.Fatal(d)
		}
	})
}
