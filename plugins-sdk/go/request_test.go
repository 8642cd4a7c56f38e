package ym

import (
	"encoding/hex"
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// The structs are laid over the contract's golden blocks, in which every field has a
// value of its own.
func TestRequestsAreTheContracts(t *testing.T) {
	data, err := os.ReadFile("../../policies/abi/testdata/blocks.txt")
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, size uintptr) unsafe.Pointer {
		for line := range strings.Lines(string(data)) {
			if digits, ok := strings.CutPrefix(strings.TrimSpace(line), kind+" "); ok {
				b, err := hex.DecodeString(digits)
				if err != nil || len(b) != int(size) {
					t.Fatalf("%s: %d bytes for a struct of %d, %v", kind, len(b), size, err)
				}
				words := make([]uint64, len(b)/8+1)
				copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(b)), b)
				return unsafe.Pointer(&words[0])
			}
		}
		t.Fatalf("no block of kind %s", kind)
		return nil
	}
	r := *(*RouterRequest)(block("router", unsafe.Sizeof(RouterRequest{})))
	if Known(r.SLOBetween) {
		t.Errorf("router: the wanted time between tokens is %v", r.SLOBetween)
	}
	r.SLOBetween = 12
	if want := (RouterRequest{1, 2, 3, 4, 5, 6, Unknown, 8, 9, 2, 11, 12, 13}); r != want {
		t.Errorf("router: got %+v, want %+v", r, want)
	}
	a := *(*AdmissionRequest)(block("admission", unsafe.Sizeof(AdmissionRequest{})))
	a.DeadlineMillis = 18
	if want := (AdmissionRequest{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0.5, 16, 17, 18, 19, 20, 21}); a != want {
		t.Errorf("admission: got %+v, want %+v", a, want)
	}
	if got, want := *(*PoolsRequest)(block("autoscaler", unsafe.Sizeof(PoolsRequest{}))), (PoolsRequest{1, 2, 3, 4, 5, 6, 7}); got != want {
		t.Errorf("autoscaler: got %+v, want %+v", got, want)
	}
	if got, want := *(*OutcomesRequest)(block("observer", unsafe.Sizeof(OutcomesRequest{}))), (OutcomesRequest{1, 2, 3, 1, 5}); got != want {
		t.Errorf("observer: got %+v, want %+v", got, want)
	}
}

func TestVerdicts(t *testing.T) {
	for got, want := range map[Verdict]uint64{
		Admit(200): 200 << 8, Queue(100): 100<<8 | 1, Reject(429, 1500): 1500<<32 | 429<<16 | 2, Degrade(7): 7<<8 | 3, 0: 0,
	} {
		if uint64(got) != want {
			t.Errorf("got %#x, want %#x", got, want)
		}
	}
}

func TestNotNegative(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ v, want float32 }{
		{0, 0},
		{1.5, 1.5},
		{-1.5, 0},
		{math.MaxFloat32, math.MaxFloat32},
		{-math.MaxFloat32, 0},
		{inf, inf},
		{-inf, nan},
		{math.SmallestNonzeroFloat32, math.SmallestNonzeroFloat32},
		{-math.SmallestNonzeroFloat32, 0},
		{nan, nan},
	} {
		if got := NotNegative(c.v); got != c.want && (Known(got) || Known(c.want)) {
			t.Errorf("NotNegative(%v) = %v", c.v, got)
		}
	}
}
