package blob

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, opts Options) *Shelf {
	t.Helper()
	s, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func put(t testing.TB, s *Shelf, data []byte) Digest {
	t.Helper()
	d, err := s.Put(t.Context(), data)
	if err != nil || d != rollout.DigestOf(data) {
		t.Fatal(d, err)
	}
	return d
}

func TestShelfOnDiskAndInMemory(t *testing.T) {
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "a", "blobs")} {
		s := open(t, Options{Dir: dir})
		data := bytes.Repeat([]byte("wasm"), 1000)
		d := put(t, s, data)
		put(t, s, data)
		if got, err := s.Get(t.Context(), d); err != nil || !bytes.Equal(got, data) || !s.Has(d) || s.Bytes() != 4000 {
			t.Errorf("%d bytes of %d held, %v", len(got), s.Bytes(), err)
		}
		if _, err := s.Get(t.Context(), Digest{1}); !errors.Is(err, ErrMissing) {
			t.Error(err)
		}
		for _, bad := range [][]byte{nil, make([]byte, MaxBlob+1)} {
			if _, err := s.Put(t.Context(), bad); !errors.Is(err, ErrSize) {
				t.Errorf("%d bytes: %v", len(bad), err)
			}
		}
		if dir == "" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, d.String()))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		again := open(t, Options{Dir: dir})
		if got, err := again.Get(t.Context(), d); err != nil || !bytes.Equal(got, data) || again.Bytes() != 4000 {
			t.Errorf("after a restart: %d bytes, %v", len(got), err)
		}
	}
}

// A file that is not what it should be is missing, and can be put again.
func TestDamage(t *testing.T) {
	data := bytes.Repeat([]byte("wasm"), 1000)
	flipped := bytes.Clone(data)
	flipped[1234] ^= 1
	for name, damage := range map[string]func(path string) error{
		"bit":   func(path string) error { return os.WriteFile(path, flipped, 0o600) },
		"half":  func(path string) error { return os.Truncate(path, 2000) },
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"long":  func(path string) error { return os.Truncate(path, MaxBlob+1) },
		"gone":  os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, Options{Dir: dir})
			d := put(t, s, data)
			if err := damage(filepath.Join(dir, d.String())); err != nil {
				t.Fatal(err)
			}
			restarted := open(t, Options{Dir: dir})
			for _, shelf := range []*Shelf{s, restarted} {
				if _, err := shelf.Get(t.Context(), d); !errors.Is(err, ErrMissing) {
					t.Errorf("got %v", err)
				}
				if shelf.Has(d) || shelf.Bytes() != 0 {
					t.Error("still counted")
				}
			}
			put(t, restarted, data)
			if got, err := restarted.Get(t.Context(), d); err != nil || !bytes.Equal(got, data) {
				t.Error(err)
			}
		})
	}
}

// What a crash left half written is removed, what is not ours is left alone.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"0123-1" + halfWritten: 5, "notes.txt": 5, strings.Repeat("ab", 32): MaxBlob + 1} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s := open(t, Options{Dir: dir}); s.Bytes() != 0 {
		t.Errorf("%d bytes", s.Bytes())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestNoRoom(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), Free: func() (uint64, error) { return reserve + 100, nil }})
	if _, err := s.Put(t.Context(), make([]byte, 101)); !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "64 are kept for the log") {
		t.Errorf("a full disk: %v", err)
	}
	put(t, s, make([]byte, 100))
	if err := roomy(&os.PathError{Err: syscall.ENOSPC}); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
	missing := open(t, Options{Dir: filepath.Join(t.TempDir(), "x")})
	if err := os.RemoveAll(missing.opts.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := missing.Put(t.Context(), []byte("x")); !errors.Is(err, os.ErrNotExist) || missing.Has(rollout.DigestOf([]byte("x"))) {
		t.Errorf("a folder that is gone: %v", err)
	}
}

// A full shelf gives up what nothing names, the oldest first, and never what is
// named or young.
func TestFullShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := map[Digest]bool{}
		s := open(t, Options{Named: func(d Digest) bool { return named[d] }})
		var all []Digest
		for i := range MaxHeld / MaxBlob {
			data := make([]byte, MaxBlob)
			data[0] = byte(i)
			all = append(all, put(t, s, data))
			time.Sleep(time.Second)
		}
		named[all[0]] = true
		time.Sleep(tooYoung)
		more := make([]byte, MaxBlob)
		more[0] = 0xff
		s.Touch(all[1])
		put(t, s, more) // the third makes room
		if !s.Has(all[0]) || !s.Has(all[1]) || s.Has(all[2]) || s.Bytes() > MaxHeld {
			t.Error("another one went")
		}
		for _, d := range all {
			s.Touch(d)
		}
		more[0] = 0xfd
		if _, err := s.Put(t.Context(), bytes.Clone(more)); !errors.Is(err, ErrNoRoom) {
			t.Errorf("all are young: %v", err)
		}
	})
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := map[Digest]bool{}
		s := open(t, Options{Dir: t.TempDir(), Named: func(d Digest) bool { return named[d] }})
		a, b := put(t, s, []byte("a")), put(t, s, []byte("b"))
		named[a] = true
		time.Sleep(time.Hour)
		if got := s.Sweep(t.Context(), time.Hour); len(got) != 1 || got[0] != b || s.Has(b) || !s.Has(a) {
			t.Errorf("%v", got)
		}
		delete(named, a)
		if got := s.Sweep(t.Context(), time.Hour); len(got) != 0 {
			t.Errorf("its grace begins when it is not named any more: %v", got)
		}
		time.Sleep(time.Hour)
		if got := s.Sweep(t.Context(), time.Hour); len(got) != 1 || s.Bytes() != 0 {
			t.Errorf("%v", got)
		}
		left, err := os.ReadDir(s.opts.Dir)
		if err != nil || len(left) != 0 {
			t.Errorf("%v, %v", left, err)
		}
	})
}

// A disk that hangs costs the callers their deadline and a bounded number of
// goroutines, and the shelf in memory still answers.
func TestHungDisk(t *testing.T) {
	s, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	var all sync.WaitGroup
	for range 3 * maxCalls {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := s.onDisk(ctx, func() error { <-hang; return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a hung disk: %v", err)
			}
		})
	}
	all.Wait()
	if n := len(s.calls); n != maxCalls {
		t.Errorf("%d calls hang, want %d", n, maxCalls)
	}
	if s.Has(Digest{1}) || len(s.Sweep(t.Context(), 0)) != 0 {
		t.Error("what is not there")
	}
	close(hang)
	s.Close()
	if _, err := s.Put(t.Context(), []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("put after the end: %v", err)
	}
}

// A file that does not go away holds up nobody who asks about another blob.
func TestHungUnlink(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	hang := make(chan struct{})
	s.removeFile = func(name string) error { <-hang; return os.Remove(name) }
	defer close(hang)
	old := put(t, s, []byte("old"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if gone := s.Sweep(ctx, 0); len(gone) != 1 || gone[0] != old {
		t.Errorf("swept %v", gone)
	}
	answered := make(chan bool, 1)
	go func() { answered <- s.Has(old) }()
	select {
	case has := <-answered:
		if has {
			t.Error("what was swept is still held")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a hung disk holds up a question about memory")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Put(ctx, []byte("new")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("put on a hung disk: %v", err)
	}
}

func TestConcurrentPuts(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	data := bytes.Repeat([]byte("x"), 100_000)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.Put(t.Context(), data); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(s.opts.Dir)
	if s.Bytes() != 100_000 || err != nil || len(left) != 1 {
		t.Errorf("%d bytes in %v, %v", s.Bytes(), left, err)
	}
}

// peer is a source that does as it is told.
type peer struct {
	data  []byte
	edit  func(n int, size int64, piece []byte) (int64, []byte, error) // n counts pieces
	asked int
}

func (p *peer) Piece(_ context.Context, _ Digest, offset int64) (int64, []byte, error) {
	p.asked++
	size, piece := int64(len(p.data)), bytes.Clone(PieceOf(p.data, offset))
	if p.edit == nil {
		return size, piece, nil
	}
	return p.edit(p.asked, size, piece)
}

// stalled never answers.
type stalled struct{}

func (stalled) Piece(ctx context.Context, _ Digest, _ int64) (int64, []byte, error) {
	<-ctx.Done()
	return 0, nil, ctx.Err()
}

// slow answers, each time just before it would be given up.
type slow struct{ *peer }

func (s slow) Piece(ctx context.Context, d Digest, offset int64) (int64, []byte, error) {
	select {
	case <-time.After(pieceTime - time.Millisecond):
		return s.peer.Piece(ctx, d, offset)
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

func TestFetchFromFaultyPeers(t *testing.T) {
	data := make([]byte, 3*Piece+77)
	for i := range data {
		data[i] = byte(i * 7)
	}
	d, gone := rollout.DigestOf(data), errors.New("connection is gone")
	for name, tt := range map[string]struct {
		edit func(n int, size int64, piece []byte) (int64, []byte, error)
		want error
	}{
		"honest":       {nil, nil},
		"has it not":   {func(int, int64, []byte) (int64, []byte, error) { return 0, nil, ErrMissing }, ErrMissing},
		"dies":         {func(n int, size int64, p []byte) (int64, []byte, error) { return size, p, dieAt(n, 3, gone) }, gone},
		"other bytes":  {func(_ int, size int64, p []byte) (int64, []byte, error) { p[0]++; return size, p, nil }, ErrFalse},
		"half a piece": {func(_ int, size int64, p []byte) (int64, []byte, error) { return size, p[:len(p)/2], nil }, ErrFalse},
		"nothing":      {func(_ int, size int64, _ []byte) (int64, []byte, error) { return size, nil, nil }, ErrFalse},
		"too much":     {func(_ int, size int64, p []byte) (int64, []byte, error) { return size, append(p, p...), nil }, ErrFalse},
		"other size":   {func(_ int, size int64, p []byte) (int64, []byte, error) { return size + 1, p, nil }, ErrFalse},
		"the end only": {func(n int, size int64, p []byte) (int64, []byte, error) {
			if n < 3 {
				return size, p, nil
			}
			return size, p[:1], nil
		}, ErrFalse},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{data: data, edit: tt.edit}
			got, err := Fetch(t.Context(), p, d, int64(len(data)))
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || tt.want == nil && !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if p.asked > 4 {
				t.Errorf("asked %d times", p.asked)
			}
		})
	}
	for _, size := range []int64{0, -1, MaxBlob + 1} {
		if _, err := Fetch(t.Context(), &peer{data: data}, d, size); !errors.Is(err, ErrSize) {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

func dieAt(n, at int, err error) error {
	if n < at {
		return nil
	}
	return err
}

// A peer that hangs is given up after a piece's time, one that is slow after the
// whole's.
func TestFetchIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		from Source
		want time.Duration
	}{
		"stalled": {stalled{}, pieceTime},
		"slow":    {slow{&peer{data: make([]byte, MaxBlob)}}, wholeTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, err := Fetch(t.Context(), tt.from, Digest{1}, MaxBlob)
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > tt.want {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

// Against a plain map: what was put is there, and nothing else is.
func TestShelfMatchesModel(t *testing.T) {
	contents := rapid.SampledFrom([]string{"a", "bb", "ccc", "dddd"})
	base, run := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		dir := filepath.Join(base, strconv.Itoa(run))
		plain, named := map[Digest]string{}, map[Digest]bool{}
		opts := Options{Dir: dir, Named: func(d Digest) bool { return named[d] }}
		s, err := Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				c := contents.Draw(t, "content")
				d, err := s.Put(t.Context(), []byte(c))
				if err != nil {
					t.Fatal(err)
				}
				plain[d] = c
			},
			"name":   func(t *rapid.T) { named[rollout.DigestOf([]byte(contents.Draw(t, "content")))] = true },
			"forget": func(t *rapid.T) { delete(named, rollout.DigestOf([]byte(contents.Draw(t, "content")))) },
			"sweep": func(t *rapid.T) {
				for _, d := range s.Sweep(t.Context(), 0) {
					if _, had := plain[d]; !had || named[d] {
						t.Fatalf("removed %v", d)
					}
					delete(plain, d)
				}
			},
			"damage": func(t *rapid.T) {
				d := rollout.DigestOf([]byte(contents.Draw(t, "content")))
				if _, had := plain[d]; !had {
					return
				}
				if err := os.WriteFile(filepath.Join(dir, d.String()), []byte("?"), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Get(t.Context(), d); !errors.Is(err, ErrMissing) {
					t.Fatal(err)
				}
				delete(plain, d)
			},
			"restart": func(t *rapid.T) {
				s.Close()
				if s, err = Open(opts); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				var bytes int64
				for d, c := range plain {
					if got, err := s.Get(t.Context(), d); err != nil || string(got) != c {
						t.Fatalf("%q: %q, %v", c, got, err)
					}
					bytes += int64(len(c))
				}
				if s.Bytes() != bytes {
					t.Fatalf("%d bytes, want %d", s.Bytes(), bytes)
				}
			},
		})
		s.Close()
	})
}
