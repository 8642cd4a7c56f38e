package planner

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/rollout"
)

func FuzzApply(f *testing.F) {
	for line := range strings.Lines(string(readFile(f, "testdata/log-v3.hex"))) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		m := fuzzBase(t)
		before, checked := m.Digest(), m.Check(entry)
		res, err := m.Apply(10, entry)
		if checked == nil && err != nil {
			t.Fatalf("Check let pass what Apply cannot read: %v", err)
		}
		if errors.Is(checked, ErrLevel) && (err != nil || res.Code != Refused) {
			t.Fatalf("an entry above the level: %+v, %v", res, err)
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
				t.Fatalf("untyped error: %v", err)
			}
			if m.Digest() != before {
				t.Fatal("an entry that was not understood changed the state")
			}
			return
		}
		if back, err := ParseResult(AppendResult(nil, res)); err != nil || back != res {
			t.Fatalf("%+v became %+v, %v", res, back, err)
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

// fuzzBase is a machine at level 3 with a little of everything.
func fuzzBase(t testing.TB) *Machine {
	m := New()
	for i, c := range []Command{
		SetFeatureLevel{3},
		SetRegister{Key: "empty"},
		SetQuota{"t1", 1000},
		PutMember{member("a")},
		PutPolicy{policyVersion("kv", "1", rollout.Router)},
		ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: policyStage("kv@1")}},
	} {
		entry, err := Encode(RequestID{}, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Apply(uint64(i+1), entry); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func FuzzParseResult(f *testing.F) {
	f.Add(AppendResult(nil, Result{Index: 7, Code: Conflict, Epoch: 5, Changed: true, Version: 3, Granted: 2}))
	f.Add([]byte{0x10, 0xff, 0xff, 0x03})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResult(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		if back, err := ParseResult(AppendResult(nil, r)); err != nil || back != r {
			t.Fatalf("%+v became %+v, %v", r, back, err)
		}
	})
}

func FuzzRestore(f *testing.F) {
	good := readFile(f, "testdata/snapshot-v2.bin")
	f.Add(good, false)
	f.Add(readFile(f, "testdata/snapshot-v1.bin"), false)
	latest := readFile(f, "testdata/snapshot-v3.bin")
	f.Add(latest, false)
	f.Add(bytes.Replace(latest, []byte("m/1"), []byte("m/0"), 1), true)
	f.Add(bytes.Replace(latest, []byte("weights"), []byte("aeights"), 1), true)
	f.Add(latest[:len(latest)*2/3], false)
	f.Add(bytes.Replace(good, []byte("gw-1"), []byte("gw-3"), 1), true)
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
