package abi_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// header is the golden header of a router with two columns, one parameter, and 16
// rows: its words, in order.
func header() []uint32 {
	return []uint32{
		0x314c4d59, 1 << 16, 13, 16,
		0x100, 72, // request
		0x160, 8, // params
		2, 1,
		0x200, 0x240, // inputs
		0x280, // output
	}
}

func router(t testing.TB) *abi.Manifest {
	t.Helper()
	m, err := abi.ParseManifest([]byte(`{"abi":"1.0","kind":"router","name":"x","version":"1",
		"columns":[{"name":"hit_tokens"},{"name":"requests"}],"params":[{"name":"w","type":"float","default":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// memory puts words at a place of a memory of 1 KiB.
func memory(at int, words []uint32) []byte {
	b := make([]byte, 1<<10)
	for i, w := range words {
		binary.LittleEndian.PutUint32(b[at+4*i:], w)
	}
	return b
}

func TestLayout(t *testing.T) {
	got, err := abi.ReadLayout(memory(0x40, header()), 0x40, router(t))
	if err != nil {
		t.Fatal(err)
	}
	want := &abi.Layout{
		Rows: 16, Inputs: []uint32{0x200, 0x240}, Outputs: []uint32{0x280},
		Request: abi.Span{At: 0x100, Size: 72}, Params: abi.Span{At: 0x160, Size: 8},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLayoutsThatCannotBe(t *testing.T) {
	tests := []struct {
		name  string
		at    int // of the header
		word  int
		value uint32
		want  string
	}{
		{"header at the end", 1 << 10, 0, 0, "is not in the memory of 1024 bytes"},
		{"header at an odd place", 0x41, 0, 0, "at a multiple of 4"},
		{"no header", 0x40, 0, 7, "begins with 0x7"},
		{"another major version", 0x40, 1, 2 << 16, "version 2.0"},
		{"a newer minor version", 0x40, 1, 1<<16 | 5, "version 1.5"},
		{"another size", 0x40, 2, 40, "40 words; with its pointers it has 13"},
		{"no rows", 0x40, 3, 0, "0 rows"},
		{"too many rows", 0x40, 3, 1 << 30, "1073741824 rows"},
		{"request outside", 0x40, 4, 0xffff_fff8, "request block at 0xfffffff8"},
		{"request too small", 0x40, 5, 16, "has 16 bytes; kind router needs 72"},
		{"params too small", 0x40, 7, 4, "1 params need 8"},
		{"params misaligned", 0x40, 6, 0x164, "not at a multiple of 8"},
		{"a column more than the manifest has", 0x40, 8, 3, "3 input columns; the manifest lists 2"},
		{"no output", 0x40, 9, 0, "0 output columns; kind router has 1"},
		{"column misaligned", 0x40, 10, 0x204, "column hit_tokens at 0x204 is not at a multiple of 16"},
		{"column outside", 0x40, 11, 0x3f0, "column requests at 0x3f0 with 64 bytes is not in the memory"},
		{"column at 0", 0x40, 10, 0, "at 0, which is no address"},
		{"column over a column", 0x40, 10, 0x240, "column requests at 0x240 overlaps the column hit_tokens"},
		{"output over an input", 0x40, 12, 0x230, "output score at 0x230 overlaps the column requests"},
		{"request over the header", 0x40, 4, 0x48, "request block at 0x48 overlaps the header"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			words := header()
			words[tt.word] = tt.value
			b := make([]byte, 1<<10)
			if tt.at+4*len(words) <= len(b) {
				b = memory(tt.at, words)
			}
			_, err := abi.ReadLayout(b, uint32(tt.at), router(t))
			if !errors.Is(err, abi.ErrLayout) {
				t.Fatalf("got %v", err)
			}
			// Two buffers in one place may be named in either order.
			got := err.Error()
			if !strings.Contains(got, tt.want) && !strings.Contains(got, "overlap") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzLayout(f *testing.F) {
	f.Add(memory(0x40, header()), uint32(0x40))
	m := router(f)
	f.Fuzz(func(t *testing.T, b []byte, at uint32) {
		l, err := abi.ReadLayout(b, at, m)
		if err != nil {
			return
		}
		// All of it can be sliced, and what the host writes leaves the rest alone.
		mark := func(from, size uint32, with byte) {
			for i := range b[from : from+size : from+size] {
				b[int(from)+i] = with
			}
		}
		for i, at := range append(append([]uint32{}, l.Inputs...), l.Outputs...) {
			mark(at, uint32(4*l.Rows), byte(i+1))
		}
		for i, at := range append(append([]uint32{}, l.Inputs...), l.Outputs...) {
			for _, c := range b[at : at+uint32(4*l.Rows)] {
				if c != byte(i+1) {
					t.Fatalf("column %d was overwritten", i)
				}
			}
		}
		mark(l.Request.At, l.Request.Size, 0)
		mark(l.Params.At, l.Params.Size, 0)
	})
}

// blocks are the golden blocks: every field has a value of its own.
func blocks() map[string][]byte {
	nan := float32(math.NaN())
	out := map[string][]byte{
		"router": make([]byte, abi.RouterRequestSize), "admission": make([]byte, abi.AdmissionRequestSize),
		"autoscaler": make([]byte, abi.PoolsRequestSize), "observer": make([]byte, abi.OutcomesRequestSize), "params": make([]byte, 24),
	}
	(&abi.RouterRequest{
		Seed: 1, Model: 2, Tenant: 3, Session: 4, Columns: 5, Prompt: 6, Output: abi.UnknownU32, BlockTokens: 8, Class: 9, Phase: 2,
		SLOFirst: 11, SLOBetween: nan, WaitedMillis: 13,
	}).Put(out["router"])
	(&abi.AdmissionRequest{
		Seed: 1, Model: 2, Tenant: 3, Prompt: 4, Output: 5, Class: 6, Queued: 7, TenantQueued: 8, TenantRunning: 9, Workers: 10, Waiting: 11,
		TenantTokens: 12, TenantService: 13, LeastService: 14, KVUsage: 0.5, FirstMillis: 16, SLOFirst: 17, DeadlineMillis: nan, WaitedMillis: 19, BetweenMillis: 20, SLOBetween: 21,
	}).Put(out["admission"])
	(&abi.PoolsRequest{NowMillis: 1, Seed: 2, Columns: 3, Pools: 4, Samples: 5, IntervalMillis: 6, Budget: 7}).Put(out["autoscaler"])
	(&abi.OutcomesRequest{NowMillis: 1, Seed: 2, Columns: 3, Leader: 1, Lost: 5}).Put(out["observer"])
	abi.PutParams(out["params"], []abi.Param{{Type: abi.Float}, {Type: abi.Int}, {Type: abi.Bool}}, []float64{1.5, -2, 1})
	return out
}

// The blocks' bytes are the contract: SDKs are tested against the same file.
func TestBlocksAreGolden(t *testing.T) {
	const path = "testdata/blocks.txt"
	var got strings.Builder
	all := blocks()
	all["header"] = memory(0, header())[:4*len(header())]
	for _, name := range []string{"header", "router", "admission", "autoscaler", "observer", "params"} {
		got.WriteString(name + " " + hex.EncodeToString(all[name]) + "\n")
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name string
		v    uint64
		want abi.Verdict
		ok   bool
	}{
		{"admit", 0, abi.Verdict{}, true},
		{"queue with priority", 200<<8 | 1, abi.Verdict{Action: abi.Queue, Priority: 200}, true},
		{"reject", 1500<<32 | 429<<16 | 2, abi.Verdict{Action: abi.Reject, Status: 429, RetryAfter: 1500}, true},
		{"reject with another status", 200<<16 | 2, abi.Verdict{}, false},
		{"unknown action", 9, abi.Verdict{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := abi.ReadVerdict(tt.v)
			if got != tt.want || (err == nil) != tt.ok || err != nil && !errors.Is(err, abi.ErrVerdict) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
