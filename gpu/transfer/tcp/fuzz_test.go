package tcp

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/fake"
)

func FuzzHello(f *testing.F) {
	h := &hello{Version: version, Stream: 1, Session: 2, Hash: 3, Self: engine.Peer{ID: "d", Epoch: 4}, Addressee: 5, Receiver: "p"}
	f.Add(appendHello(h)[transfer.HeadBytes:])
	f.Add([]byte("YMKV"))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := decodeHello(transfer.KindHello, body)
		if err != nil {
			if !errors.Is(err, transfer.ErrMalformed) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if diff := cmp.Diff(body, appendHello(h)[transfer.HeadBytes:]); diff != "" {
			t.Errorf("hello does not survive its own encoding: %s", diff)
		}
	})
}

// tape is a connection that plays bytes.
type tape struct {
	net.Conn
	bytes.Reader
}

func (t *tape) Read(b []byte) (int, error)      { return t.Reader.Read(b) }
func (*tape) SetReadDeadline(_ time.Time) error { return nil }

// mute is a link to nobody.
type mute struct{}

func (mute) Peer() engine.Peer           { return engine.Peer{ID: "x"} }
func (mute) Send(transfer.Message) error { return nil }
func (mute) Move(*transfer.Move) error   { return nil }
func (mute) Expect(int64)                {}
func (mute) Close(error)                 {}

// FuzzStream plays bytes to a session with an import under way: whatever comes,
// the reader ends with an error and the pages of others are as they were.
func FuzzStream(f *testing.F) {
	frame := transfer.Frame{ID: 1, Epoch: 3, Refs: []transfer.Ref{{Block: 1, Generation: 1}}, Bytes: 32}
	whole := append(transfer.AppendFrame(nil, &frame), make([]byte, 32)...)
	whole = transfer.Append(whole, &transfer.Renew{ID: 1})
	f.Add(transfer.Append(whole, &transfer.Abort{ID: 1, Why: transfer.ReasonBusy}), 5)
	f.Add(transfer.Append(nil, &transfer.Reserve{ID: 2, Prompt: 4, Blocks: frame.Refs}), 100)
	var triples []byte
	for _, m := range [][]byte{
		transfer.AppendFrame(nil, &frame), transfer.Append(nil, &transfer.Reserve{ID: 2, Prompt: 4, Blocks: frame.Refs}),
		transfer.Append(nil, &transfer.Finish{ID: 1, Epoch: 3, Frames: 1, Bytes: 32, Hidden: []float32{1}}),
		transfer.Append(nil, &transfer.Commit{ID: 2}), transfer.Append(nil, &transfer.Abort{ID: 2}),
	} {
		triples = append(append(triples, m[0], byte(len(m)-transfer.HeadBytes)), m[transfer.HeadBytes:]...)
		if m[0] == byte(transfer.KindFrame) {
			triples = append(triples, make([]byte, 32)...)
		}
	}
	f.Add(triples, 7)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		memory := fake.NewMemory(transfer.Shape{Layers: 1, Blocks: 4, BlockTokens: 4, PageBytes: 32, Hidden: 1})
		var own engine.OwnEpoch
		own.Set(1)
		node, err := transfer.New(transfer.Config{
			Memory: memory, ID: "d", Own: &own,
		}, dialerTo{mute{}})
		if err != nil {
			t.Fatal(err)
		}
		imp := node.Import(1, engine.Peer{ID: "x", Epoch: 3}, transfer.Destination{
			Prompt: make([]int32, 4), Blocks: []transfer.Ref{{Block: 1, Generation: 1}},
		}, func([]float32, error) {})
		if cut%2 != 0 {
			b = wellFormed(b)
		}
		st := &stream{conn: &tape{Reader: *bytes.NewReader(b)}, buf: make([]byte, 1+uint(cut)%4096), spare: make([]byte, 16)}
		if err := readMessages(st, node, mute{}, time.Second); err == nil {
			t.Error("the reader ended without an error")
		}
		imp.Cancel()
		for _, block := range []int32{0, 2, 3} {
			for _, v := range memory.Run(0, block, 1) {
				if v != 0 {
					t.Fatalf("block %d was written", block)
				}
			}
		}
	})
}

// wellFormed reads b as (kind, length, body) triples and gives each its head with
// the right checksums, which chance would not find.
func wellFormed(b []byte) []byte {
	var out []byte
	for len(b) >= 2 {
		kind, n := transfer.Kind(b[0]), int(b[1])
		b = b[2:]
		body := b[:min(n, len(b))]
		b = b[len(body):]
		out = append(transfer.AppendHead(out, kind, body), body...)
		if kind == transfer.KindFrame {
			n := min(32, len(b))
			out = append(out, b[:n]...)
			b = b[n:]
		}
	}
	return out
}

type dialerTo struct{ link transfer.Link }

func (d dialerTo) Link(engine.Peer) (transfer.Link, error) { return d.link, nil }
