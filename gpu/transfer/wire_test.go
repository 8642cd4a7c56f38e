package transfer_test

import (
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/gpu/transfer"
)

var examples = []struct {
	message transfer.Message
	wire    string // head and body
}{
	{
		&transfer.Reserve{
			ID: 0x0102030405060708, Source: 3, Dest: "d-0", DestEpoch: 4, Hash: 0xabcd, From: 16, Prompt: 40,
			Digest: transfer.Digest{0: 0xd1, 15: 0xd2}, Lease: 5 * time.Second,
			Blocks: []transfer.Ref{{Block: 9, Generation: 2}, {Block: 5, Generation: 0xffffffff}},
		},
		"0200000059000000ea7584dffb1267ee" +
			"080706050403020103000000000000000400000000000000cdab0000000000001000000028000000" +
			"d10000000000000000000000000000d200f2052a010000000300642d3002000000090000000200000005000000ffffffff",
	},
	{
		&transfer.Finish{ID: 1, Epoch: 3, Frames: 2, Bytes: 1 << 33, Digest: 0x11, Hidden: []float32{1, -2}},
		"030000003000000017c38254e51cb5ed" +
			"010000000000000003000000000000000200000000000000020000001100000000000000020000000000803f000000c0",
	},
	{&transfer.Abort{ID: 1, Why: transfer.ReasonDigest}, "0400000009000000276569371b2e38dc010000000000000009"},
	{&transfer.Commit{ID: 1}, "0500000008000000adcf14c5dd1f9bcf0100000000000000"},
	{&transfer.Renew{ID: 1}, "0600000008000000adcf14c58d63099c0100000000000000"},
}

func read(b []byte) (transfer.Message, error) {
	head, err := transfer.ParseHead(b[:min(len(b), transfer.HeadBytes)])
	if err != nil {
		return nil, err
	}
	body := b[transfer.HeadBytes:]
	if err := head.Check(body); err != nil {
		return nil, err
	}
	return transfer.Decode(head.Kind, body)
}

func TestWire(t *testing.T) {
	for _, tt := range examples {
		b := transfer.Append(nil, tt.message)
		if got := hex.EncodeToString(b); got != tt.wire {
			t.Errorf("%T is %s, want %s", tt.message, got, tt.wire)
		}
		got, err := read(b)
		if diff := cmp.Diff(tt.message, got); err != nil || diff != "" {
			t.Errorf("%T: %v, %s", tt.message, err, diff)
		}
		for cut := range b {
			if _, err := read(b[:cut]); !errors.Is(err, transfer.ErrMalformed) {
				t.Errorf("%T cut at %d: %v", tt.message, cut, err)
			}
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			if _, err := read(b); !errors.Is(err, transfer.ErrMalformed) {
				t.Errorf("%T with bit %d flipped: %v", tt.message, bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestFrameWire(t *testing.T) {
	f := transfer.Frame{ID: 1, Epoch: 3, Layer: 2, Index: 7, Refs: []transfer.Ref{{Block: 9, Generation: 2}}, Bytes: 48, CRC: 0xdeadbeef}
	b := transfer.AppendFrame(nil, &f)
	const want = "070000002c00000093507be52b75597d01000000000000000300000000000000020000000700000030000000efbeadde010000000900000002000000"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("frame is %s, want %s", got, want)
	}
	head, err := transfer.ParseHead(b[:transfer.HeadBytes])
	if err != nil || head.Kind != transfer.KindFrame {
		t.Fatalf("%+v, %v", head, err)
	}
	got, err := transfer.DecodeFrame(b[transfer.HeadBytes:])
	if diff := cmp.Diff(f, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestHugeCountsCostNothing(t *testing.T) {
	// A body whose arrays claim 2^31-1 elements.
	body := make([]byte, 60)
	for i := 30; i < len(body); i++ {
		body[i] = 0x7f
	}
	for kind := transfer.KindReserve; kind <= transfer.KindRenew; kind++ {
		if n := testing.AllocsPerRun(10, func() { _, _ = transfer.Decode(kind, body) }); n > 20 {
			t.Errorf("kind %d: %v allocations", kind, n)
		}
	}
}

// FuzzDecode feeds bodies of any kind: the decoder fails or yields what encodes
// to the same body.
func FuzzDecode(f *testing.F) {
	for _, tt := range examples {
		b := transfer.Append(nil, tt.message)
		f.Add(b[0], b[transfer.HeadBytes:])
	}
	frame := transfer.Frame{ID: 1, Refs: []transfer.Ref{{Block: 1}}, Bytes: 8}
	f.Add(byte(transfer.KindFrame), transfer.AppendFrame(nil, &frame)[transfer.HeadBytes:])
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		var again []byte
		if transfer.Kind(kind) == transfer.KindFrame {
			got, err := transfer.DecodeFrame(body)
			if err != nil {
				checkMalformed(t, err)
				return
			}
			again = transfer.AppendFrame(nil, &got)
		} else {
			got, err := transfer.Decode(transfer.Kind(kind), body)
			if err != nil {
				checkMalformed(t, err)
				return
			}
			again = transfer.Append(nil, got)
			if _, abort := got.(*transfer.Abort); abort {
				return // unknown reasons are read as one that is known
			}
		}
		if diff := cmp.Diff(body, again[transfer.HeadBytes:]); diff != "" {
			t.Errorf("kind %d does not survive its own encoding: %s", kind, diff)
		}
	})
}

// FuzzHead feeds heads.
func FuzzHead(f *testing.F) {
	f.Add(transfer.AppendHead(nil, transfer.KindRenew, []byte("12345678")))
	f.Add(make([]byte, transfer.HeadBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		head, err := transfer.ParseHead(b)
		if err != nil {
			checkMalformed(t, err)
			return
		}
		if head.Body > transfer.MaxBody {
			t.Errorf("body of %d bytes", head.Body)
		}
	})
}

func checkMalformed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, transfer.ErrMalformed) {
		t.Errorf("untyped error %v", err)
	}
}
