package wal

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// call is the beginning or the end of a call of the system that changed files, as
// strace tells of it. One that was not interrupted by another is both.
type call struct {
	kind   kind
	path   string // the file's, or the new one's of a rename
	from   string // of a rename
	offset int64  // of a write
	size   int64  // of a change of size
	grow   bool   // only ever
	data   []byte
	begins bool
	ends   bool // and has done what it says
	began  int  // at an end: which call of the trace was the beginning
}

type kind int

const (
	write kind = iota
	resize
	flush
	create
	rename
	remove
)

// sectorBytes is what disks write whole.
const sectorBytes = 512

// record runs a writer and returns what it did to files in dir. It is nil where
// processes may not be traced, which skips the test.
func record(t *testing.T, strace, dir string, seed uint64) []call {
	t.Helper()
	out := filepath.Join(t.TempDir(), "trace")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-y", "-xx", "-qq", "-s", "67108864", "-e", "signal=none", "-o", out,
		"-e", "trace=openat,write,pwrite64,writev,pwritev,ftruncate,fallocate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdirat",
		os.Args[0], "-test.run=^TestPowerCut$")
	cmd.Env = append(os.Environ(), writerDirVar+"="+dir, writerSeedVar+"="+strconv.FormatUint(seed, 10), "GODEBUG=asyncpreemptoff=1")
	if said, err := cmd.CombinedOutput(); err != nil {
		if bytes.Contains(said, []byte("ptrace")) {
			t.Skipf("processes may not be traced here: %s", said)
		}
		t.Fatalf("%v: %s", err, said)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	calls, err := readTrace(f, dir)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// readTrace keeps of a trace what changed files in dir.
func readTrace(f *os.File, dir string) (calls []call, err error) {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<28)
	open := map[string]int{} // threads in a call: where it began
	for lines.Scan() {
		thread, what, _ := strings.Cut(lines.Text(), " ")
		what = strings.TrimLeft(what, " ")
		if strings.HasPrefix(what, "<... ") {
			began, ok := open[thread]
			delete(open, thread)
			if _, result, did := outcome(what); ok && did {
				c := calls[began]
				c.begins, c.ends, c.began = false, true, began
				calls = append(calls, c.done(result))
			}
			continue
		}
		what, unfinished := strings.CutSuffix(what, " <unfinished ...>")
		result := 0
		if !unfinished {
			var did bool
			if what, result, did = outcome(what); !did {
				continue
			}
		}
		name, args, _ := strings.Cut(what, "(")
		c, ok, err := parseCall(name, args, dir)
		if err != nil {
			return nil, fmt.Errorf("%w in %.300s", err, what)
		}
		if !ok {
			continue
		}
		c.begins, c.ends, c.began = true, !unfinished, len(calls)
		if unfinished {
			open[thread] = len(calls)
		} else {
			c = c.done(result)
		}
		calls = append(calls, c)
	}
	return calls, lines.Err()
}

// outcome splits what a call returned from what it is, without the last bracket.
// It reports false for one that did nothing.
func outcome(line string) (what string, result int, did bool) {
	at := strings.LastIndex(line, "= ")
	if at < 0 {
		return "", 0, false
	}
	number, _, _ := strings.Cut(line[at+2:], "<") // a descriptor's path follows
	result, err := strconv.Atoi(strings.TrimSpace(number))
	return strings.TrimSuffix(strings.TrimRight(line[:at], " "), ")"), result, err == nil && result >= 0
}

// done takes what the call returned.
func (c call) done(result int) call {
	if c.kind == write && result < len(c.data) {
		c.data = c.data[:result]
	}
	return c
}

// parseCall is not ok for a call that changed nothing in dir.
func parseCall(name, args, dir string) (c call, ok bool, err error) {
	parts := strings.Split(args, ", ")
	inside := func(p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
	switch name {
	case "openat":
		if len(parts) < 3 || !strings.Contains(parts[2], "O_CREAT") {
			return c, false, nil
		}
		c.kind, c.path = create, text(parts[1])
		if strings.Contains(parts[2], "O_TRUNC") && inside(c.path) && !strings.HasSuffix(c.path, saidName) {
			return c, false, fmt.Errorf("a file is emptied when it is opened, which the model does not know: %s", c.path)
		}
	case "write", "pwrite64":
		c.kind, c.path = write, ofDescriptor(parts[0])
		if !inside(c.path) {
			return c, false, nil
		}
		c.data = []byte(text(parts[1]))
		if name == "pwrite64" {
			c.offset, err = strconv.ParseInt(parts[3], 10, 64)
		} else if filepath.Base(c.path) != saidName {
			err = fmt.Errorf("the model does not know where %s is written to", c.path)
		}
	case "ftruncate":
		c.kind, c.path = resize, ofDescriptor(parts[0])
		c.size, err = strconv.ParseInt(parts[1], 10, 64)
	case "fallocate":
		c.kind, c.path, c.grow = resize, ofDescriptor(parts[0]), true
		c.size, err = strconv.ParseInt(parts[3], 10, 64)
	case "fsync", "fdatasync":
		c.kind, c.path = flush, ofDescriptor(parts[0])
	case "rename":
		c.kind, c.from, c.path = rename, text(parts[0]), text(parts[1])
	case "renameat", "renameat2":
		c.kind, c.from, c.path = rename, text(parts[1]), text(parts[3])
	case "unlink":
		c.kind, c.path = remove, text(parts[0])
	case "unlinkat":
		c.kind, c.path = remove, text(parts[1])
	case "mkdirat": // the folder is there from the start
		return c, false, nil
	default:
		if inside(ofDescriptor(parts[0])) {
			err = fmt.Errorf("the model does not know %s", name)
		}
		return c, false, err
	}
	return c, inside(c.path) && err == nil, err
}

// ofDescriptor is the path in 7<path>.
func ofDescriptor(s string) string {
	_, path, _ := strings.Cut(s, "<")
	return unescape(strings.TrimSuffix(path, ">"))
}

// text is what is between quotes.
func text(s string) string { return unescape(strings.Trim(s, `"`)) }

// unescape undoes \x41, of which a text consists.
func unescape(s string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(s, `\x`, ""))
	if err != nil {
		return s
	}
	return string(b)
}

// disk is what a recorded process has on its disk for certain, and what may be
// there as well.
type disk struct {
	dir     string
	names   map[string]*inode // now, as the process sees it
	certain map[string]*inode // after a power cut at the least
	pending []change          // of names, in order
}

type inode struct {
	certain []byte
	pending []change
}

// change is not known to be on the disk.
type change struct {
	call  *call
	began int    // place in the trace
	ended int    // the same, or -1
	file  *inode // of a create or a rename
}

func newDisk(dir string) *disk {
	return &disk{dir: dir, names: map[string]*inode{}, certain: map[string]*inode{}}
}

// see takes the next call of the trace.
func (d *disk) see(c *call, at int) {
	switch c.kind {
	case write, resize:
		if f := d.names[c.path]; f != nil {
			f.pending = note(f.pending, c, at, nil)
		}
	case create:
		if _, exists := d.names[c.path]; c.ends && !exists && filepath.Dir(c.path) == d.dir {
			f := &inode{}
			d.names[c.path] = f
			d.pending = append(d.pending, change{c, c.began, at, f})
		}
	case rename:
		if c.ends {
			f := d.names[c.from]
			delete(d.names, c.from)
			d.names[c.path] = f
			d.pending = append(d.pending, change{c, c.began, at, f})
		}
	case remove:
		if c.ends {
			delete(d.names, c.path)
			d.pending = append(d.pending, change{c, c.began, at, nil})
		}
	case flush:
		if c.ends {
			d.synced(c)
		}
	}
}

// note adds a change, or that it has ended.
func note(all []change, c *call, at int, f *inode) []change {
	if !c.begins {
		for i := range all {
			if all[i].began == c.began {
				all[i].call, all[i].ended = c, at
			}
		}
		return all
	}
	ended := -1
	if c.ends {
		ended = at
	}
	return append(all, change{c, at, ended, f})
}

// synced makes certain what had ended before the sync began.
func (d *disk) synced(c *call) {
	before := func(x change) bool { return x.ended >= 0 && x.ended <= c.began }
	if c.path == d.dir {
		for _, x := range d.pending {
			if before(x) {
				x.name(d.certain)
			}
		}
		d.pending = slices.DeleteFunc(d.pending, before)
		return
	}
	f := d.names[c.path]
	if f == nil {
		return
	}
	for _, x := range f.pending {
		if before(x) {
			f.certain = x.write(f.certain, nil)
		}
	}
	f.pending = slices.DeleteFunc(f.pending, before)
}

func (x change) name(names map[string]*inode) {
	switch x.call.kind {
	case create:
		names[x.call.path] = x.file
	case rename:
		delete(names, x.call.from)
		names[x.call.path] = x.file
	default:
		delete(names, x.call.path)
	}
}

// write is the file b after the change, or, if random is given, after a part of it.
func (x change) write(b []byte, random *rand.Rand) []byte {
	c := x.call
	if c.kind == resize {
		if int64(len(b)) < c.size {
			return append(b, make([]byte, c.size-int64(len(b)))...)
		}
		if c.grow {
			return b
		}
		return b[:c.size]
	}
	data := c.data
	whole := func(int) bool { return true }
	if random != nil {
		if random.IntN(2) == 0 { // up to somewhere
			end := random.IntN(len(data)/sectorBytes + 2)
			whole = func(sector int) bool { return sector < end }
		} else { // here and there
			whole = func(int) bool { return random.IntN(2) == 0 }
		}
	}
	if need := c.offset + int64(len(data)); int64(len(b)) < need {
		b = append(b, make([]byte, need-int64(len(b)))...)
	}
	first := c.offset / sectorBytes
	for at := int64(0); at < int64(len(data)); {
		place := c.offset + at
		end := min(int64(len(data)), (place/sectorBytes+1)*sectorBytes-c.offset)
		if whole(int(place/sectorBytes - first)) {
			copy(b[place:], data[at:end])
		}
		at = end
	}
	return b
}

// cut writes into dir what the disk may hold after the power was cut now. It
// returns 1 when something there is half written.
func (d *disk) cut(t *testing.T, dir string, random *rand.Rand) (half int) {
	t.Helper()
	names := maps.Clone(d.certain)
	for _, x := range d.pending {
		if random.IntN(2) == 0 {
			x.name(names)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, f := range names {
		b := slices.Clone(f.certain)
		sized := true
		for _, x := range f.pending {
			size := len(b)
			switch random.IntN(4) {
			case 0:
				sized = sized && x.call.kind != resize
				continue
			case 1:
				b = x.write(b, nil)
			default:
				b = x.write(b, random)
			}
			if !sized { // nobody sees bytes behind the end of a file that was to be longer
				b = b[:min(size, len(b))]
			}
			half = 1
		}
		if err := writeSparse(filepath.Join(dir, filepath.Base(name)), b); err != nil {
			t.Fatal(err)
		}
	}
	return half
}

// writeSparse writes no zeros: files are mostly that.
func writeSparse(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // its writes say
	if err := f.Truncate(int64(len(b))); err != nil {
		return err
	}
	const piece = 64 << 10
	for at := 0; at < len(b); at += piece {
		p := b[at:min(at+piece, len(b))]
		if !zero(p) {
			if _, err := f.WriteAt(p, int64(at)); err != nil {
				return err
			}
		}
	}
	return nil
}
