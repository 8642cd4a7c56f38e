package control

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// What is written by hand is what the message's own encoding gives, for frames
// of any content, and within FrameSize.
func TestAppendFrameIsTheMessagesEncoding(t *testing.T) {
	hashes := rapid.SliceOfN(rapid.Map(rapid.Uint64(), func(v uint64) prefix.Hash { return prefix.Hash(v) }), 0, 20)
	rapid.Check(t, func(t *rapid.T) {
		f := prefix.Frame{
			Kind: prefix.FrameKind(rapid.Byte().Draw(t, "kind")), Worker: fleet.WorkerID(rapid.String().Draw(t, "worker")),
			Epoch: fleet.Epoch(rapid.Uint64().Draw(t, "epoch")), First: rapid.Uint64().Draw(t, "first"), Last: rapid.Uint64().Draw(t, "last"),
			Cleared: rapid.Bool().Draw(t, "cleared"), Stores: hashes.Draw(t, "stores"), Removes: hashes.Draw(t, "removes"),
			Repair: rapid.Uint64().Draw(t, "repair"), Part: rapid.Uint32().Draw(t, "part"), Sum: rapid.Uint64().Draw(t, "sum"),
		}
		if rapid.Bool().Draw(t, "buckets") {
			f.Buckets.Add(rapid.Byte().Draw(t, "bucket"))
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(FromFrame(&f))
		if err != nil {
			t.Fatal(err)
		}
		got, err := AppendFrame(nil, &f)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v\ngot  %x\nwant %x", err, got, want)
		}
		if len(got) > FrameSize(&f) {
			t.Fatalf("%d bytes, FrameSize says %d", len(got), FrameSize(&f))
		}
	})
	if out, err := AppendFrame([]byte("x"), &prefix.Frame{Worker: "\xff"}); err == nil || string(out) != "x" {
		t.Errorf("an id that is not UTF-8: %q, %v", out, err)
	}
}

func fullFrame() prefix.Frame {
	return prefix.Frame{Kind: prefix.FrameDelta, Worker: "worker-1", Epoch: 1, First: 1, Last: 1000, Stores: make([]prefix.Hash, 1000)}
}

func TestAppendFrameAllocatesNothing(t *testing.T) {
	f := fullFrame()
	buf := make([]byte, 0, FrameSize(&f))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := AppendFrame(buf, &f); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppendFrame(b *testing.B) {
	f := fullFrame()
	buf := make([]byte, 0, FrameSize(&f))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = AppendFrame(buf, &f)
	}
}

func BenchmarkScanFrame(b *testing.B) {
	f := fullFrame()
	wire, err := AppendFrame(nil, &f)
	if err != nil {
		b.Fatal(err)
	}
	var into prefix.Frame
	b.ReportAllocs()
	for b.Loop() {
		if err := ScanFrame(wire, &into); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseFrame(b *testing.B) {
	f := fullFrame()
	wire, err := AppendFrame(nil, &f)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseFrame(wire); err != nil {
			b.Fatal(err)
		}
	}
}
