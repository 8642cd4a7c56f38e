package planner

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
)

func FuzzApply(f *testing.F) {
	for line := range strings.Lines(string(readFile(f, "testdata/log-v1.hex"))) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		m := New()
		res, err := m.Apply(5, entry)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		if res.Code != Ignored && int(res.Code) >= len(codeNames) {
			t.Fatalf("result %+v", res)
		}
		back := New()
		if err := back.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
			t.Fatalf("state of a fuzzed entry does not restore: %v", err)
		}
		if back.Digest() != m.Digest() {
			t.Fatal("state differs after restore")
		}
	})
}

func FuzzRestore(f *testing.F) {
	good := readFile(f, "testdata/snapshot-v1.bin")
	f.Add(good, false)
	f.Add(good[:len(good)/2], false)
	f.Add(bytes.Replace(good, []byte("both-0"), []byte("zoth-0"), 1), true)
	f.Add([]byte(snapshotMagic+"\x01\x01\xff\xff\xff\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix { // get past the checksums, to the sections' contents
			b = fixChecksums(b)
		}
		m := New()
		if err := m.Restore(bytes.NewReader(b)); err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		back := New()
		if err := back.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
			t.Fatalf("a restored state does not restore again: %v", err)
		}
	})
}

func fixChecksums(b []byte) []byte {
	const sectionHeader = 6
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	b = bytes.Clone(b)
	for at := len(snapshotMagic); at+sectionHeader < len(b); {
		end := at + sectionHeader + int(binary.LittleEndian.Uint32(b[at+2:]))
		if end > len(b)-4 || end < at {
			return b
		}
		binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[at:end], castagnoli))
		at = end + 4
	}
	return b
}

func TestHostileLengthAllocatesNothing(t *testing.T) {
	b := append([]byte(snapshotMagic), 1, 1, 0, 0, 0, 1) // claims 16 MiB
	allocated := testing.Benchmark(func(bm *testing.B) {
		for range bm.N {
			m := New()
			if err := m.Restore(bytes.NewReader(b)); !errors.Is(err, ErrMalformed) {
				bm.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 64<<10 {
		t.Errorf("%d bytes allocated for a snapshot of %d bytes", allocated, len(b))
	}
}
