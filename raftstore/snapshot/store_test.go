package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

var members = raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "127.0.0.1:1"}}}

func open(t *testing.T, dir string) (*Store, *[]string) {
	t.Helper()
	var damaged []string
	s, err := Open(dir, 2, hclog.NewNullLogger(), func(id string, _ error) { damaged = append(damaged, id) })
	if err != nil {
		t.Fatal(err)
	}
	return s, &damaged
}

func write(t *testing.T, s *Store, index uint64, contents string) string {
	t.Helper()
	_, trans := raft.NewInmemTransport("")
	sink, err := s.Create(raft.SnapshotVersionMax, index, 1, members, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(sink, contents); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return sink.ID()
}

func indices(t *testing.T, s *Store) (out []uint64) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		out = append(out, m.Index)
	}
	return out
}

func contents(s *Store, id string) (string, error) {
	_, r, err := s.Open(id)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(r)
	return string(b), errors.Join(err, r.Close())
}

func TestNewestTwoAreKept(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	for i := range uint64(4) {
		write(t, s, 10+i, "state")
	}
	again, damaged := open(t, dir)
	if got := indices(t, again); !slices.Equal(got, []uint64{13, 12}) || len(*damaged) > 0 {
		t.Errorf("snapshots at %v, damaged %v", got, *damaged)
	}
}

// A flipped bit of the description, the seal or the contents is noticed, the
// snapshot goes into quarantine, and the one before it is found.
func TestFlippedBitsAreNoticed(t *testing.T) {
	t.Parallel()
	for _, file := range []string{metaFile, sealFile, "state.bin"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			probe, _ := open(t, t.TempDir())
			size := fileSize(t, filepath.Join(probe.folder(write(t, probe, 20, "the newer state")), file))
			for at := int64(0); at < size; at += 1 + size/25 {
				dir := t.TempDir()
				s, damaged := open(t, dir)
				older := write(t, s, 10, "the older state")
				newer := write(t, s, 20, "the newer state")
				flip(t, filepath.Join(s.folder(newer), file), at)
				_, _ = contents(s, newer)
				if got := indices(t, s); !slices.Equal(got, []uint64{10}) || !slices.Equal(*damaged, []string{newer}) {
					t.Fatalf("byte %d flipped: snapshots at %v, damaged %v", at, got, *damaged)
				}
				if got, err := contents(s, older); err != nil || got != "the older state" {
					t.Fatalf("%q, %v", got, err)
				}
				if _, err := os.Stat(filepath.Join(dir, quarantineFolder, newer, "state.bin")); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1 << (at % 8)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The library's own store wrote the snapshots of the first release: no seal.
func TestSnapshotsOfTheFirstReleaseAreRead(t *testing.T) {
	dir := t.TempDir()
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("")
	sink, err := files.Create(raft.SnapshotVersionMax, 7, 1, members, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(sink, "state"); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	s, damaged := open(t, dir)
	if got, err := contents(s, sink.ID()); err != nil || got != "state" || len(*damaged) > 0 {
		t.Errorf("%q, %v, damaged %v", got, err, *damaged)
	}
}

func TestUnfinishedSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	_, trans := raft.NewInmemTransport("")
	if _, err := s.Create(raft.SnapshotVersionMax, 7, 1, members, 1, trans); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, dir)
	if left, err := os.ReadDir(s.folder("")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	good, bad := write(t, s, 10, "state"), write(t, s, 20, "state")
	flip(t, filepath.Join(s.folder(bad), metaFile), 0)
	ro := OpenReadOnly(dir)
	if got := indices(t, ro); !slices.Equal(got, []uint64{10}) {
		t.Errorf("snapshots at %v", got)
	}
	if _, err := os.Stat(ro.folder(bad)); err != nil {
		t.Errorf("the damaged snapshot was moved: %v", err)
	}
	if got, err := contents(ro, good); err != nil || got != "state" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ro.Create(1, 1, 1, members, 1, nil); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Create = %v", err)
	}
	if _, err := os.Stat(ro.folder(bad)); err != nil {
		t.Error("the damaged one was moved")
	}
	if _, _, err := ro.Open("../" + good); err == nil {
		t.Error("opened something outside")
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add([]byte(`{"Version":1,"ID":"x","Index":7,"Term":1}`), []byte("ym-seal 1 00000000 9\n"))
	f.Fuzz(func(t *testing.T, meta, sealed []byte) {
		dir := t.TempDir()
		for name, b := range map[string][]byte{metaFile: meta, sealFile: sealed} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := describe(dir, "x"); err == nil && !bytes.Equal(sealed, sealOf(meta)) {
			t.Fatal("a false seal was believed")
		}
	})
}
