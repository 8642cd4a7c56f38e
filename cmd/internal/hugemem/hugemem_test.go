package hugemem

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

func TestWords(t *testing.T) {
	var s Source
	owner := new([1]*int)
	a := New(&s, owner)
	seen := map[*uint64]bool{}
	for _, n := range []int{1, 1 << 15, 1 << 20, 1 << 21, region/8 + 1, region / 8} {
		w := a.Words(n)
		if len(w) != n || cap(w) < n || w[0] != 0 || w[n-1] != 0 {
			t.Fatalf("%d words: %d", n, len(w))
		}
		runtime.GC() // which must free nothing of an owner who is still there
		w[0], w[n-1] = 1, 1
		if seen[&w[0]] {
			t.Fatal("a piece was handed out twice")
		}
		seen[&w[0]] = true
	}
	a.Free()
	if s.Mapped() != 0 {
		t.Errorf("%d bytes are left", s.Mapped())
	}
	if w := a.Words(1); w[0] != 0 {
		t.Error("an allocator that was freed hands out used memory")
	}
	runtime.KeepAlive(owner)
	a.Free()
	a.Free()
}

// residentMiB is the process's resident memory, or 0 where nothing says it.
func residentMiB() int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return pages * os.Getpagesize() >> 20
}

// TestRestoresKeepMemoryFlat restores an index again and again, as a member does
// that falls behind each time its log has been cut.
func TestRestoresKeepMemoryFlat(t *testing.T) {
	var s Source
	state := prefix.NewState(prefix.Options{Memory: func(x *prefix.Index) prefix.Memory {
		a := New(&s, x)
		for i, w := 0, a.Words(region/16); i < len(w); i += 512 { // as a larger index would
			w[i] = 1
		}
		return a
	}})
	frame := prefix.Frame{Kind: prefix.FrameAttach, Worker: fleet.WorkerID("w"), Epoch: 1}
	state.Apply(&frame)
	blocks := make([]prefix.Hash, 10_000)
	for i := range blocks {
		blocks[i] = prefix.Hash(i+1) * 0x9E3779B97F4A7C15
	}
	frame = prefix.Frame{Kind: prefix.FrameDelta, Worker: "w", Epoch: 1, First: 1, Last: 1, Stores: blocks}
	state.Apply(&frame)
	var snapshot bytes.Buffer
	image := state.Snapshot()
	_, err := image.WriteTo(&snapshot)
	image.Release()
	if err != nil {
		t.Fatal(err)
	}
	one := s.Mapped()
	var early int
	for n := range 24 {
		if err := state.Restore(bytes.NewReader(snapshot.Bytes())); err != nil {
			t.Fatal(err)
		}
		if n == 3 {
			early = residentMiB()
		}
	}
	// 20 indices of 16 MiB would stand out.
	if grown := residentMiB() - early; grown > 100 {
		t.Errorf("20 restores took %d MiB more", grown)
	}
	for range 500 {
		if runtime.GC(); s.Mapped() <= one {
			runtime.KeepAlive(state)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d bytes are mapped for an index of %d", s.Mapped(), one)
}
