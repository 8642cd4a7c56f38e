package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// filled is a directory with a closed log of n entries.
func filled(t *testing.T, n uint64) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		l := &raft.Log{Index: i + 1, Term: 3, Data: binary.LittleEndian.AppendUint64([]byte("entry of the test "), i+1)}
		if err := s.StoreLogs([]*raft.Log{l}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 3), s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// unmark lets a log be one that was never known to reach so far.
func unmark(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, markName)); err != nil {
		t.Fatal(err)
	}
}

func segmentPath(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// What a crash tore off at the end of the file is gone, and all before it is
// there: it was never acknowledged, for want of the sync.
func TestTornTail(t *testing.T) {
	dir := filled(t, 20)
	path := segmentPath(t, dir)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndex(b, []byte("entry of the test "))
	for cut := last; cut < last+26; cut += 5 {
		torn := slices.Concat(b[:cut], make([]byte, len(b)-cut))
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		unmark(t, dir)
		s, err := Open(dir, nil)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if n, err := s.LastIndex(); err != nil || n != 19 {
			t.Errorf("cut at %d: last entry %d, %v", cut, n, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that ends right after the append that filled a segment has not written
// down that it is full. The log goes on all the same.
func TestFullSegmentOfACrash(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(dir, metaName)
	before, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	last, first := uint64(0), segmentPath(t, dir)
	var found []string
	for len(found) < 2 {
		last++
		// A deletion waits until the segment is turned, if it is.
		err := errors.Join(s.StoreLog(&raft.Log{Index: last, Term: 1, Data: make([]byte, 1<<20)}), s.DeleteRange(last+1, last+1))
		if err != nil {
			t.Fatal(err)
		}
		if found, err = filepath.Glob(filepath.Join(dir, "*.wal")); err != nil {
			t.Fatal(err)
		}
	}
	found = slices.DeleteFunc(found, func(f string) bool { return f == first })
	if err := errors.Join(s.Close(), os.Remove(found[0])); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(meta, before, 0o600); err != nil {
		t.Fatal(err)
	}
	ro, err := OpenReadOnly(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, ro, last)
	if s, err = Open(dir, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		last++
		if err := s.StoreLog(&raft.Log{Index: last, Term: 2, Data: []byte("more")}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	ends(t, s, last)
}

// A flipped bit anywhere is an error of the entry it is in, or has the log end
// before it; no reader ever gets another entry than was stored.
func TestFlippedBits(t *testing.T) {
	dir := filled(t, 20)
	path := segmentPath(t, dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := bytes.LastIndex(good, []byte("entry of the test ")) + 40
	noticed := 0
	for at := 0; at < end; at += 31 {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		noticed += readAll(t, dir, at)
	}
	if noticed < end/31/2 {
		t.Errorf("only %d of %d flips had any effect", noticed, end/31)
	}
}

// readAll opens a damaged log and reads it; it returns 1 if damage was noticed.
func readAll(t *testing.T, dir string, at int) (noticed int) {
	t.Helper()
	s, err := Open(dir, nil)
	if err != nil {
		return 1
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if last < 20 {
		noticed = 1
	}
	for i := uint64(1); i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			noticed = 1
			continue
		}
		if l.Index != i || l.Term != 3 || binary.LittleEndian.Uint64(l.Data[len(l.Data)-8:]) != i {
			t.Fatalf("byte %d flipped: entry %d reads as %+v", at, i, l)
		}
	}
	return noticed
}

func TestReadOnlyChangesNothing(t *testing.T) {
	dir := filled(t, 20)
	path := segmentPath(t, dir)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := bytes.LastIndex(b, []byte("entry"))
	b = slices.Concat(b[:end], make([]byte, len(b)-end))                      // to be repaired
	orphan := filepath.Join(dir, "00000000000000000099-0000000000000063.wal") // to be deleted
	for p, b := range map[string][]byte{path: b, orphan: []byte("left")} {
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenReadOnly(dir, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("a log that ends too early: %v", err)
	}
	unmark(t, dir)
	before := tree(t, dir)
	s, err := OpenReadOnly(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.LastIndex(); err != nil || n != 19 {
		t.Errorf("last entry %d, %v", n, err)
	}
	if term, err := s.GetUint64([]byte("CurrentTerm")); err != nil || term != 3 {
		t.Errorf("term %d, %v", term, err)
	}
	var l raft.Log
	if err := errors.Join(s.GetLog(7, &l), s.Close()); err != nil || l.Index != 7 {
		t.Errorf("entry %+v, %v", l, err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if _, err := OpenReadOnly(t.TempDir(), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing log: %v", err)
	}
}

// tree is the names, times and contents below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, path))
		out.WriteString(path + " " + info.ModTime().String() + " ")
		_ = binary.Write(&out, binary.LittleEndian, checksum(&raft.Log{Data: b}))
		out.WriteString("\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}
