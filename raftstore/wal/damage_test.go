package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"
	"pgregory.net/rapid"
)

// rewrite changes a file.
func rewrite(t *testing.T, path string, edit func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// written is how many bytes of a segment are not zeros at its end.
func written(b []byte) int { return len(bytes.TrimRight(b, "\x00")) }

// What is lost of a log, while the node does not run, is noticed when it starts, and
// nothing is changed then.
func TestDamageIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(t *testing.T, dir string)
		wants  string // in the refusal
		accept uint64 // last entry once the loss is accepted; 0 when that does not help
	}{
		"segments removed": {func(t *testing.T, dir string) {
			if err := os.Remove(segmentPath(t, dir)); err != nil {
				t.Fatal(err)
			}
		}, "0000.wal is missing", 0},
		"segment cut short": {func(t *testing.T, dir string) {
			rewrite(t, segmentPath(t, dir), func(b []byte) []byte { return b[:written(b)-30] })
		}, "needs 8388608", 19},
		"end zeroed": {func(t *testing.T, dir string) {
			rewrite(t, segmentPath(t, dir), func(b []byte) []byte { n := written(b); clear(b[n-200 : n]); return b })
		}, "had reached 20", 17},
		"bit of the last record flipped": {func(t *testing.T, dir string) {
			rewrite(t, segmentPath(t, dir), func(b []byte) []byte { b[written(b)-30] ^= 4; return b })
		}, "ends at entry 19 and had reached 20", 19},
		"bit of a record in the middle flipped": {func(t *testing.T, dir string) {
			rewrite(t, segmentPath(t, dir), func(b []byte) []byte {
				b[bytes.LastIndex(b, append([]byte("entry of the test "), 12))] ^= 4
				return b
			})
		}, "fails its checksum before byte", 11},
		"terms and votes removed": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, metaName)); err != nil {
				t.Fatal(err)
			}
		}, metaName + " is missing", 0},
		"all but the mark removed": {func(t *testing.T, dir string) {
			if err := errors.Join(os.Remove(filepath.Join(dir, metaName)), os.Remove(segmentPath(t, dir))); err != nil {
				t.Fatal(err)
			}
		}, metaName + " is missing", 0},
		"terms and votes emptied": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, metaName), func([]byte) []byte { return nil })
		}, metaName + " is not readable", 0},
		"terms and votes overwritten": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, metaName), func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) })
		}, metaName + " is not readable", 0},
		"terms and votes made anew": {func(t *testing.T, dir string) {
			meta := &metadb.BoltMetaDB{}
			if err := os.Remove(filepath.Join(dir, metaName)); err != nil {
				t.Fatal(err)
			}
			if _, err := meta.Load(dir); err != nil || meta.Close() != nil {
				t.Fatal(err)
			}
		}, "lists no segments", 0},
		"mark overwritten": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, markName), func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) })
		}, markName + " is not readable", 20},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t, 20)
			c.spoil(t, dir)
			for range 2 {
				before := tree(t, dir)
				if s, err := OpenReadOnly(dir, nil); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.wants) {
					t.Fatalf("to be read: %v, %v", s, err)
				}
				if tree(t, dir) != before {
					t.Error("a look changed it")
				}
				if s, err := Open(dir, nil); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.wants) {
					t.Fatalf("to be written: %v, %v", s, err)
				}
			}
			if c.accept == 0 {
				return
			}
			for _, open := range []func(string, hclog.Logger, ...Option) (Store, error){OpenReadOnly, Open} {
				s, err := open(dir, nil, AcceptLoss)
				if err != nil {
					t.Fatal(err)
				}
				ends(t, s, c.accept)
			}
			s, err := Open(dir, nil) // its mark is where it ends now
			if err != nil {
				t.Fatal(err)
			}
			ends(t, s, c.accept)
		})
	}
}

// ends asserts that all up to last can be read, and closes the log.
func ends(t *testing.T, s Store, last uint64) {
	t.Helper()
	if n, err := s.LastIndex(); err != nil || n != last {
		t.Errorf("last entry %d, %v; want %d", n, err, last)
	}
	for i := range last {
		var l raft.Log
		if err := s.GetLog(i+1, &l); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Segments that are full are missed too, and one that a crash lost before anything
// in it was synced is not.
func TestSealedSegments(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 1<<20)
	for i := range uint64(9) {
		if err := s.StoreLogs([]*raft.Log{{Index: i + 1, Term: 1, Data: big}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	full, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"removed":   func() error { return os.Remove(found[0]) },
		"cut short": func() error { return os.Truncate(found[0], int64(len(full)-9000)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(dir, nil); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), found[0]) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
		if err := os.WriteFile(found[0], full, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = Open(dir, nil); err != nil {
		t.Fatal(err)
	}
	last, err := s.LastIndex()
	if err := errors.Join(err, s.DeleteRange(8, last), s.Close()); err != nil {
		t.Fatal(err)
	}
	found, err = filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	if err := os.Remove(found[1]); err != nil { // empty
		t.Fatal(err)
	}
	if s, err = Open(dir, nil); err != nil {
		t.Fatal(err)
	}
	ends(t, s, 7)
}

// A torn write is told of once, and is not part of what is read later.
func TestTornTailIsToldOf(t *testing.T) {
	dir := filled(t, 30)
	unmark(t, dir)
	rewrite(t, segmentPath(t, dir), func(b []byte) []byte { b[written(b)-30] ^= 4; return b })
	for i, told := range []bool{true, false} {
		var log bytes.Buffer
		s, err := Open(dir, hclog.New(&hclog.LoggerOptions{Output: &log}))
		if err != nil {
			t.Fatal(err)
		}
		ends(t, s, 29)
		if strings.Contains(log.String(), "harmless") != told {
			t.Errorf("start %d: %s", i, &log)
		}
	}
}

// Whatever is stored, deleted and damaged, a log that was not damaged opens, and one
// whose end is lost does not.
func TestMarkFollowsTheLog(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := t.TempDir() + rapid.StringMatching("[a-z]{8}").Draw(r, "dir")
		first, last := uint64(0), uint64(0)
		for range 2 {
			s, err := Open(dir, nil)
			if err != nil {
				r.Fatal(err)
			}
			if n, err := s.LastIndex(); err != nil || n != last {
				r.Fatalf("last entry %d, %v; want %d", n, err, last)
			}
			for range rapid.IntRange(0, 3).Draw(r, "steps") {
				switch what := rapid.SampledFrom([]string{"store", "head", "tail", "all"}).Draw(r, "what"); {
				case what == "store" || last == 0:
					next := last + 1
					if last == 0 {
						next = rapid.Uint64Range(1, 100).Draw(r, "next")
						first = next
					}
					last, err = next, s.StoreLogs([]*raft.Log{{Index: next, Term: 1, Data: []byte("x")}})
				case what == "all" || first == last:
					err = s.DeleteRange(first, last)
					first, last = 0, 0
				case what == "head":
					to := rapid.Uint64Range(first, last-1).Draw(r, "to")
					err = s.DeleteRange(first, to)
					first = to + 1
				default:
					from := rapid.Uint64Range(first+1, last).Draw(r, "from")
					err = s.DeleteRange(from, last)
					last = from - 1
				}
				if err != nil {
					r.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				r.Fatal(err)
			}
		}
	})
}

// A process that dies leaves a mark that is a second old at most.
func TestMarkIsWrittenMeanwhile(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // only read
	for i := range uint64(50) {
		if err := s.StoreLogs([]*raft.Log{{Index: i + 1, Term: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m, err := readMark(dir)
		if err != nil {
			t.Fatal(err)
		}
		if m.index == 50 {
			if m.seq > 3 {
				t.Errorf("the mark was written %d times", m.seq)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the mark stays at %d", m.index)
		}
	}
}

// A torn write of the mark leaves the one before; a mark that cannot be written is a
// disk that failed.
func TestMarkSlots(t *testing.T) {
	dir := t.TempDir()
	m, err := readMark(dir)
	if err != nil || m.index != 0 {
		t.Fatal(m, err)
	}
	for _, index := range []uint64{7, 9, 4} {
		if err := m.write(index); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.close(); err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[int]uint64{1: 9, 0: 4} { // of sequence numbers 3, and 2
		rewrite(t, m.path, func(b []byte) []byte { b[slot*slotBytes+9] ^= 1; return b })
		got, err := readMark(dir)
		if err != nil || got.index != want {
			t.Errorf("slot %d torn: %+v, %v; want %d", slot, got, err, want)
		}
		rewrite(t, m.path, func(b []byte) []byte { b[slot*slotBytes+9] ^= 1; return b })
	}
	k, err := keepMark(Memory(), m, time.Hour) // its file is closed
	if err == nil {
		k.reached.Store(3)
		err = k.put()
	}
	if err == nil {
		t.Fatal("a closed file was written")
	}
}

func FuzzScan(f *testing.F) {
	head := make([]byte, fileHead)
	f.Add(head)
	f.Add(append(head, frameEntry, 0, 0, 0, 255, 255, 255, 255, frameCommit, 0, 0, 0, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, end, _, bad := scan(b)
		if end > len(b) || bad > len(b) || entries > uint64(len(b)) {
			t.Errorf("%d entries up to %d of %d, bad at %d", entries, end, len(b), bad)
		}
	})
}

// BenchmarkStoreLogs is one durable append after the other.
func BenchmarkStoreLogs(b *testing.B) {
	s, err := Open(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	data := binary.LittleEndian.AppendUint64(make([]byte, 92), 1)
	i := uint64(0)
	for b.Loop() {
		i++
		if err := s.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: data}}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
