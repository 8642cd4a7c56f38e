package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/hashicorp/raft"
)

// What the writer of TestPowerCut is told by: where, and the seed of what it does.
const (
	writerDirVar  = "YARDMASTER_TEST_WRITER"
	writerSeedVar = "YARDMASTER_TEST_WRITER_SEED"
)

// deeds is what a writer does, each being waited for before the next.
const deeds = 160

// deed is one call of a log.
type deed struct {
	logs     []*raft.Log // to store
	from, to uint64      // to delete
	term     uint64      // to be set
	reopen   bool
}

func (d deed) String() string {
	switch {
	case d.logs != nil:
		return fmt.Sprintf("store %d to %d", d.logs[0].Index, d.logs[len(d.logs)-1].Index)
	case d.to > 0:
		return fmt.Sprintf("delete %d to %d", d.from, d.to)
	case d.reopen:
		return "reopen"
	default:
		return fmt.Sprintf("term %d", d.term)
	}
}

func (d deed) do(dir string, s Store) (Store, error) {
	switch {
	case d.logs != nil:
		return s, s.StoreLogs(d.logs)
	case d.to > 0:
		return s, s.DeleteRange(d.from, d.to)
	case d.reopen:
		if err := s.Close(); err != nil {
			return nil, err
		}
		return Open(dir, nil)
	default:
		return s, s.SetUint64([]byte("CurrentTerm"), d.term)
	}
}

// contents is what a log holds.
type contents struct {
	first, last uint64 // 0, 0: nothing
	data        map[uint64][]byte
	term        uint64
}

func (c contents) after(d *deed) contents {
	c.data = maps.Clone(c.data)
	switch {
	case d.logs != nil:
		for _, l := range d.logs {
			c.data[l.Index] = l.Data
		}
		c.last = d.logs[len(d.logs)-1].Index
		if c.first == 0 {
			c.first = d.logs[0].Index
		}
	case d.to > 0:
		for i := d.from; i <= d.to; i++ {
			delete(c.data, i)
		}
		switch {
		case d.from == c.first && d.to == c.last:
			c.first, c.last = 0, 0
		case d.from == c.first:
			c.first = d.to + 1
		default:
			c.last = d.from - 1
		}
	case d.reopen:
	default:
		c.term = d.term
	}
	return c
}

// history is what a writer of that seed does, and what the log holds before each
// deed and after the last.
func history(seed uint64) (all []deed, states []contents) {
	random := rand.New(rand.NewPCG(seed, 1))
	now := contents{data: map[uint64][]byte{}}
	next := uint64(1)
	for n := range deeds {
		d := draw(random, now, next, n)
		if d.logs != nil {
			next = d.logs[len(d.logs)-1].Index + 1
		}
		all, states = append(all, d), append(states, now)
		now = now.after(&d)
		if d.to > 0 && now.last > 0 {
			next = now.last + 1
		}
	}
	return all, append(states, now)
}

func draw(random *rand.Rand, now contents, next uint64, n int) deed {
	has := now.last > now.first
	switch k := random.IntN(40); {
	case k < 4:
		return deed{term: uint64(n + 1)}
	case k < 6:
		return deed{reopen: true}
	case k < 9 && has: // what another leader does not have
		return deed{from: now.last - random.Uint64N(min(8, now.last-now.first)), to: now.last}
	case k < 11 && has: // what a snapshot holds
		return deed{from: now.first, to: now.first + random.Uint64N(now.last-now.first)}
	case k < 12 && has: // a snapshot that another made
		return deed{from: now.first, to: now.last}
	}
	size := 300
	if random.IntN(4) == 0 {
		size = 300 << 10 // several segments
	}
	var logs []*raft.Log
	for i := range 1 + random.Uint64N(6) {
		data := binary.LittleEndian.AppendUint64(nil, uint64(n)) // no two are the same
		for range random.IntN(size/8 + 1) {
			data = binary.LittleEndian.AppendUint64(data, random.Uint64())
		}
		logs = append(logs, &raft.Log{Index: next + i, Term: uint64(n), Data: data})
	}
	return deed{logs: logs}
}

// beWriter does all deeds in the folder that it is told, and says before and after
// each, in a file, that it does. It does not close the log.
func beWriter(t *testing.T, dir string) {
	seed, err := strconv.ParseUint(os.Getenv(writerSeedVar), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.Create(filepath.Join(dir, saidName))
	if err != nil {
		t.Fatal(err)
	}
	logDir := filepath.Join(dir, "log")
	s, err := Open(logDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := history(seed)
	for n := range all {
		_, begun := fmt.Fprintf(said, "begin %d", n)
		s, err = all[n].do(logDir, s)
		if err != nil {
			t.Fatal(err)
		}
		_, done := fmt.Fprintf(said, "done %d", n)
		if err := errors.Join(begun, done); err != nil {
			t.Fatal(err)
		}
	}
	os.Exit(0) // as a process ends that is killed
}

const saidName = "said"

// powerSeed is by chance, or told.
func powerSeed(t *testing.T) uint64 {
	seed := rand.Uint64N(1 << 32)
	if told, err := strconv.ParseUint(os.Getenv("YARDMASTER_SEED"), 10, 64); err == nil {
		seed = told
	}
	t.Logf("YARDMASTER_SEED=%d", seed)
	return seed
}

// powerCuts is how often the power is cut.
func powerCuts() int {
	if os.Getenv("YARDMASTER_SIM") != "" {
		return 200
	}
	return 30
}

// TestPowerCut records all that a writer's process asks of the file system, and
// cuts the power at random places of that: of what was not synced by then any part
// may be on the disk, in sectors. The log then opens, holds everything that was
// said to be done, and nothing that was never stored or is deleted.
func TestPowerCut(t *testing.T) {
	if dir := os.Getenv(writerDirVar); dir != "" {
		beWriter(t, dir)
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace here to record what is asked of the file system")
	}
	seed := powerSeed(t)
	dir := t.TempDir()
	trace := record(t, strace, dir, seed)
	if trace == nil {
		return
	}
	deeds, states := history(seed)
	random := rand.New(rand.NewPCG(seed, 2))
	from := slices.IndexFunc(trace, func(c call) bool { return c.path == filepath.Join(dir, saidName) })
	var cuts []int
	for range powerCuts() {
		cuts = append(cuts, from+random.IntN(len(trace)-from+1))
	}
	slices.Sort(cuts)
	d := newDisk(filepath.Join(dir, "log"))
	at, begun, done := 0, -1, -1
	torn := 0
	for i, cut := range cuts {
		for ; at < cut; at++ {
			if c := &trace[at]; c.path == filepath.Join(dir, saidName) && c.kind == write && c.begins {
				begun, done = heard(t, c.data, begun, done)
			}
			d.see(&trace[at], at)
		}
		after := filepath.Join(t.TempDir(), "log")
		torn += d.cut(t, after, random)
		least, most := states[done+1], states[max(begun, done)+1]
		if err := survives(after, least, most); err != nil {
			t.Errorf("cut %d, after call %d of %d, in deed %d of %d, %v: %v", i, cut, len(trace), begun, len(deeds), deeds[max(begun, 0)], err)
			if keep := os.Getenv("YARDMASTER_TEST_KEEP"); keep != "" {
				d.cut(t, filepath.Join(keep, strconv.Itoa(i)), random)
			}
			return
		}
		if err := os.RemoveAll(after); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d calls, %d cuts, %d of them with something half written", len(trace), len(cuts), torn)
	if torn == 0 {
		t.Error("nothing was ever half written; the test proved nothing")
	}
}

func heard(t *testing.T, said []byte, begun, done int) (int, int) {
	t.Helper()
	what, number, _ := bytes.Cut(said, []byte(" "))
	n, err := strconv.Atoi(string(number))
	if err != nil {
		t.Fatal(err)
	}
	if string(what) == "begin" {
		return n, done
	}
	return begun, n
}

// survives opens what a power cut left. least is what was said to be done, most
// has what was asked for at the moment as well.
func survives(dir string, least, most contents) error {
	s, err := Open(dir, nil)
	if err != nil {
		return err
	}
	last, err := judge(s, least, most)
	if err == nil { // it goes on, and comes up again
		l := &raft.Log{Index: max(last, least.last, most.last) + 1, Term: 1 << 20, Data: []byte("afterwards")}
		if last > 0 {
			l.Index = last + 1
		}
		err = s.StoreLogs([]*raft.Log{l})
		least.data, most.data = maps.Clone(least.data), maps.Clone(most.data)
		for _, c := range []*contents{&least, &most} {
			c.data[l.Index] = l.Data
			c.last = l.Index
			if last == 0 {
				c.first = l.Index
			}
		}
	}
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if s, err = Open(dir, nil); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if _, err = judge(s, least, most); err != nil {
		err = fmt.Errorf("afterwards: %w", err)
	}
	return errors.Join(err, s.Close())
}

func judge(s Store, least, most contents) (last uint64, err error) {
	first, err1 := s.FirstIndex()
	last, err2 := s.LastIndex()
	term, err3 := s.GetUint64([]byte("CurrentTerm"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	if term != least.term && term != most.term {
		return 0, fmt.Errorf("term %d, want %d or %d", term, least.term, most.term)
	}
	if !between(first, least.first, most.first) || !between(last, least.last, most.last) {
		return 0, fmt.Errorf("entries %d to %d, want %d to %d, or %d to %d", first, last, least.first, least.last, most.first, most.last)
	}
	if last == 0 {
		return 0, nil
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			return 0, fmt.Errorf("entry %d of %d to %d: %w", i, first, last, err)
		}
		a, inLeast := least.data[i]
		b, inMost := most.data[i]
		known := inLeast && bytes.Equal(l.Data, a) || inMost && bytes.Equal(l.Data, b)
		if !known {
			return 0, fmt.Errorf("entry %d of %d to %d, %d bytes, is not what was stored", i, first, last, len(l.Data))
		}
	}
	return last, nil
}

func between(x, a, b uint64) bool { return min(a, b) <= x && x <= max(a, b) }
