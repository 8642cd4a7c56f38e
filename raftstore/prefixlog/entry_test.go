package prefixlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rewrite = flag.Bool("rewrite", false, "write the golden log and snapshot of this release anew")

// small is an index that is soon full.
var small = prefix.Options{Budget: 2 << 20, Workers: 8}

// sum is a worker's checksum of its blocks.
func sum(blocks ...prefix.Hash) (total uint64) {
	for _, h := range blocks {
		total += h.Sum()
	}
	return total
}

func attach(w fleet.WorkerID) prefix.Frame {
	return prefix.Frame{Kind: prefix.FrameAttach, Worker: w, Epoch: 1}
}

// goldenFrames is a frame of every kind, by entry.
func goldenFrames() [][]prefix.Frame {
	var all prefix.Buckets
	for b := range prefix.NumBuckets {
		all.Add(uint8(b))
	}
	return [][]prefix.Frame{
		{attach("w-1"), attach("w-2")},
		{
			{Kind: prefix.FrameDelta, Worker: "w-1", Epoch: 1, First: 1, Last: 3, Stores: []prefix.Hash{1, 2 << 60, 3}, Sum: sum(1, 2<<60, 3)},
			{Kind: prefix.FrameDelta, Worker: "w-2", Epoch: 1, First: 1, Last: 2, Cleared: true, Stores: []prefix.Hash{1}, Sum: sum(1)},
			{Kind: prefix.FrameDelta, Worker: "w-1", Epoch: 1, First: 4, Last: 4, Removes: []prefix.Hash{3}, Sum: sum(1, 2<<60)},
		},
		{
			{Kind: prefix.FrameBegin, Worker: "w-1", Epoch: 1, Repair: 1, Buckets: all},
			{Kind: prefix.FramePart, Worker: "w-1", Epoch: 1, Repair: 1, Stores: []prefix.Hash{9, 1}},
			{Kind: prefix.FrameEnd, Worker: "w-1", Epoch: 1, Repair: 1, Part: 1, Last: 9, Sum: sum(9, 1)},
		},
		{{Kind: prefix.FrameDetach, Worker: "w-2", Epoch: 1}, {Kind: prefix.FrameSweep}},
	}
}

func entryOf(t testing.TB, frames ...prefix.Frame) []byte {
	t.Helper()
	entry := newEntry(0)
	for _, f := range frames {
		b, err := control.AppendFrame(nil, &f)
		if err != nil {
			t.Fatal(err)
		}
		entry = appendFrame(entry, b)
	}
	return entry
}

func goldenLog(t testing.TB) (out [][]byte) {
	for _, frames := range goldenFrames() {
		out = append(out, entryOf(t, frames...))
	}
	return append(out, []byte{1, 0xfe, 1, 2, 3}) // ignorable, of the future
}

// The bytes that this release writes are those it has always written, and what
// it wrote can be read: fixtures of every release stay here.
func TestGoldenLogAndSnapshot(t *testing.T) {
	f := New(prefix.NewState(small))
	var lines []string
	for i, e := range goldenLog(t) {
		outcomes, err := f.Apply(uint64(10+i), e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, hex.EncodeToString(e)+" "+fmt.Sprintf("%v", outcomes))
	}
	log, snap := strings.Join(lines, "\n")+"\n", snapshotBytes(t, f)
	logPath, snapPath := filepath.Join("testdata", "log-v1.hex"), filepath.Join("testdata", "snapshot-v1.bin")
	if *rewrite {
		for path, b := range map[string][]byte{logPath: []byte(log), snapPath: snap} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := readFile(t, logPath); string(got) != log {
		t.Errorf("entries or their outcomes changed:\ngot  %s\nwant %s", log, got)
	}
	if got := readFile(t, snapPath); !bytes.Equal(got, snap) {
		t.Errorf("snapshot changed on the wire: %d bytes, want %d", len(snap), len(got))
	}
	back := New(prefix.NewState(prefix.Options{}))
	if err := back.Restore(bytes.NewReader(readFile(t, snapPath))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != f.Digest() || back.Applied() != f.Applied() || back.Applied() != 14 {
		t.Errorf("the golden snapshot restores to another state, at %d", back.Applied())
	}
}

func snapshotBytes(t testing.TB, f *FSM) []byte {
	t.Helper()
	s := f.Snapshot().(*capture)
	defer s.Release()
	var b bytes.Buffer
	if n, err := s.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("%d of %d bytes, %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEntriesOfOtherReleases(t *testing.T) {
	f := New(prefix.NewState(small))
	before := f.Digest()
	for _, tt := range []struct {
		name  string
		entry []byte
		want  error
	}{
		{"a newer version", []byte{2, 1}, ErrUnknownEntry},
		{"a newer version of an ignorable type", []byte{2, 0xff}, ErrUnknownEntry},
		{"an unknown type", []byte{1, 7}, ErrUnknownEntry},
		{"an unknown type that may be skipped", []byte{1, 0x87, 9}, nil},
		{"nothing", nil, ErrMalformed},
		{"a frame that is cut", []byte{1, 1, 9, 0}, ErrMalformed},
		{"a frame of no kind", []byte{1, 1, 2, 8, 99}, ErrMalformed},
		{"too long", make([]byte, MaxEntry+1), ErrMalformed},
	} {
		outcomes, err := f.Apply(1, tt.entry)
		if !errors.Is(err, tt.want) || len(outcomes) != 0 {
			t.Errorf("%s: %v, %v", tt.name, outcomes, err)
		}
		if _, err := Check(tt.entry); !errors.Is(err, tt.want) {
			t.Errorf("%s: Check = %v", tt.name, err)
		}
	}
	if f.Digest() != before {
		t.Error("they changed the state")
	}
}

// A malformed frame behind good ones must not leave half an entry applied.
func TestAnEntryIsAppliedWholeOrNotAtAll(t *testing.T) {
	f := New(prefix.NewState(small))
	before := f.Digest()
	if _, err := f.Apply(1, append(entryOf(t, attach("w")), 2, 8, 99)); !errors.Is(err, ErrMalformed) {
		t.Fatalf("Apply = %v", err)
	}
	if f.Digest() != before || f.Applied() != 0 {
		t.Error("half an entry was applied")
	}
}

func TestRestoreRefusesDamage(t *testing.T) {
	good := readFile(t, filepath.Join("testdata", "snapshot-v1.bin"))
	f := New(prefix.NewState(small))
	if _, err := f.Apply(3, entryOf(t, attach("w"))); err != nil {
		t.Fatal(err)
	}
	want := f.Digest()
	for i := 0; i < len(good); i += 1 + len(good)/500 {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if err := f.Verify(bytes.NewReader(bad)); !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
			t.Fatalf("bit flipped in byte %d: Verify = %v", i, err)
		}
		if err := f.Restore(bytes.NewReader(bad)); err == nil {
			t.Fatalf("bit flipped in byte %d: restored", i)
		}
		if err := f.Restore(bytes.NewReader(good[:i])); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	newer := bytes.Clone(good)
	newer[len(snapshotMagic)-2]++
	if err := f.Restore(bytes.NewReader(newer)); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("a newer format: %v", err)
	}
	if f.Digest() != want || f.Applied() != 3 {
		t.Error("a failed restore changed the state")
	}
	if err := f.Verify(bytes.NewReader(good)); err != nil || f.Digest() != want {
		t.Errorf("Verify of a good snapshot: %v", err)
	}
}

func FuzzApply(f *testing.F) {
	for _, e := range goldenLog(f) {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		fsm := New(prefix.NewState(small))
		before := fsm.Digest()
		frames, checked := Check(entry)
		outcomes, err := fsm.Apply(1, entry)
		switch {
		case (err == nil) != (checked == nil):
			t.Fatalf("Check: %v, Apply: %v", checked, err)
		case err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry):
			t.Fatalf("an error of no kind: %v", err)
		case err != nil && fsm.Digest() != before:
			t.Fatal("a refused entry changed the state")
		case err == nil && len(outcomes) != frames:
			t.Fatalf("%d outcomes of %d frames", len(outcomes), frames)
		}
	})
}
