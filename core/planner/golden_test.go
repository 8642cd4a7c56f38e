package planner

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
)

var rewrite = flag.Bool("rewrite", false, "write the golden log and snapshot of this release anew")

// goldenLog is one entry of every type, in an order that leaves something of
// each behind.
func goldenLog(t *testing.T) [][]byte {
	b := testWorker("decode-1", "inc-b")
	b.Role, b.Labels = fleet.RoleDecode, nil
	cmds := []Command{
		InitCluster{"0123456789abcdef"},
		SetFeatureLevel{1},
		RegisterWorker{Worker: testWorker("both-0", "inc-a")},
		RegisterWorker{Worker: b, IfAbsent: true},
		DrainWorker{"both-0", 3},
		RegisterWorker{Worker: testWorker("gone", "inc-c")},
		LeaveWorker{"gone", 6},
		ExpireWorker{"decode-1", 3},
	}
	var out [][]byte
	for i, c := range cmds {
		e, err := Encode(RequestID{0xaa, byte(i)}, c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return append(out, append([]byte{1, 0xff}, make([]byte, 16)...)) // ignorable, of the future
}

// The bytes that this release writes are those it has always written, and what
// it wrote can be read: fixtures of every release stay here.
func TestGoldenLogAndSnapshot(t *testing.T) {
	m := New()
	var lines []string
	for i, e := range goldenLog(t) {
		lines = append(lines, hex.EncodeToString(e))
		if _, err := m.Apply(uint64(i+1), e); err != nil {
			t.Fatal(err)
		}
	}
	log, snap := strings.Join(lines, "\n")+"\n", snapshotBytes(t, m)
	logPath, snapPath := filepath.Join("testdata", "log-v1.hex"), filepath.Join("testdata", "snapshot-v1.bin")
	if *rewrite {
		for path, b := range map[string][]byte{logPath: []byte(log), snapPath: snap} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := readFile(t, logPath); string(got) != log {
		t.Errorf("entries changed on the wire:\ngot  %s\nwant %s", log, got)
	}
	if got := readFile(t, snapPath); !bytes.Equal(got, snap) {
		t.Errorf("snapshot changed on the wire:\ngot  %x\nwant %x", snap, got)
	}
	back := New()
	if err := back.Restore(bytes.NewReader(readFile(t, snapPath))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != m.Digest() {
		t.Error("the golden snapshot restores to another state")
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRestoreKeepsTheStateOnError(t *testing.T) {
	h := newHarness(t)
	h.do(RequestID{1}, RegisterWorker{Worker: testWorker("w", "a")})
	want, good := h.m.Digest(), readFile(t, "testdata/snapshot-v1.bin")
	for cut := range good {
		if err := h.m.Restore(bytes.NewReader(good[:cut])); !errors.Is(err, ErrMalformed) {
			t.Fatalf("first %d of %d bytes: %v, want ErrMalformed", cut, len(good), err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x04
		if err := h.m.Restore(bytes.NewReader(bad)); !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
			t.Fatalf("bit flipped in byte %d: %v", i, err)
		}
	}
	newer := bytes.Clone(good)
	newer[len(snapshotMagic)-2]++
	if err := h.m.Restore(bytes.NewReader(newer)); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("a newer format: %v, want ErrUnknownEntry", err)
	}
	if err := h.m.Restore(bytes.NewReader(append(good, 0))); !errors.Is(err, ErrMalformed) {
		t.Errorf("a byte too many: %v", err)
	}
	if h.m.Digest() != want {
		t.Error("a failed restore changed the state")
	}
}

func TestSnapshotOfLargeWorkers(t *testing.T) {
	big := make([]fleet.Worker, 80)
	for i := range big {
		big[i] = testWorker(string(rune('a'+i/26))+string(rune('a'+i%26)), "x")
		big[i].Epoch = 1
		big[i].Models = slices.Repeat([]string{strings.Repeat("m", 500)}, 1000)
	}
	m := New()
	m.applied = 1
	m.view.Store(fleet.NewView(1, big))
	back := New()
	if err := back.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != m.Digest() {
		t.Error("state differs after restore")
	}
}
