package transfer

import (
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/mix"
)

// Message is one control message between two nodes: [Reserve], [Finish],
// [Abort], [Commit] or [Renew].
type Message interface{ kind() Kind }

// Reserve goes from the destination to the source: these blocks wait for the
// KV of that prompt.
type Reserve struct {
	ID        uint64
	Source    fleet.Epoch // the source's incarnation meant
	Dest      fleet.WorkerID
	DestEpoch fleet.Epoch
	Hash      uint64 // the destination's Shape.Hash
	From      int    // first position wanted, a multiple of the block size
	Prompt    int    // length of the prompt in tokens
	Digest    Digest
	Lease     time.Duration
	Blocks    []Ref // destination blocks of positions From..
}

// Finish goes from the source to the destination after the last frame was
// written: what was sent, and the hidden state of the last position.
type Finish struct {
	ID     uint64
	Epoch  fleet.Epoch
	Frames uint32
	Bytes  uint64 // payload of all frames
	Digest uint64 // sum of all frames' digests
	Hidden []float32
}

// Abort goes either way and ends the transfer. It needs no answer: aborting
// twice, or what has ended, changes nothing.
type Abort struct {
	ID  uint64
	Why Reason
}

// Commit goes from the destination to the source: every page is verified.
type Commit struct{ ID uint64 }

// Renew goes either way and renews the receiver's lease.
type Renew struct{ ID uint64 }

// Frame is the header of a run of whole pages of one layer, whose bytes follow.
type Frame struct {
	ID    uint64
	Epoch fleet.Epoch // the source's
	Layer int
	Index int   // place of the first page in Reserve.Blocks
	Refs  []Ref // one per page: the destination's blocks
	Bytes int   // of payload
	CRC   uint32
}

// digest stands for the frame in Finish.Digest. It binds the place of the pages
// to their checksum, and a sum of digests does not depend on the order of
// arrival, for frames travel on several streams.
func (f *Frame) digest() uint64 {
	h := uint64(f.Layer)<<32 | uint64(uint32(f.Index))
	h = mix.Next(h ^ uint64(len(f.Refs))<<56)
	return mix.Next(h ^ uint64(f.CRC))
}

func (*Reserve) kind() Kind { return KindReserve }
func (*Finish) kind() Kind  { return KindFinish }
func (*Abort) kind() Kind   { return KindAbort }
func (*Commit) kind() Kind  { return KindCommit }
func (*Renew) kind() Kind   { return KindRenew }
