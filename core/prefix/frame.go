package prefix

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/mix"
)

// FrameKind says what a [Frame] tells.
type FrameKind uint8

// The kinds. Numbers are for ever: they stand in logs.
const (
	// FrameAttach makes an incarnation known. Of one worker only the newest is.
	FrameAttach FrameKind = iota + 1
	// FrameDetach forgets an incarnation and all it holds.
	FrameDetach
	// FrameDelta says what changed in a worker's cache: it was emptied if Cleared,
	// then Removes went and Stores came.
	FrameDelta
	// FrameBegin opens a repair: the blocks of Buckets are forgotten, to be told
	// anew.
	FrameBegin
	// FramePart tells blocks of the buckets under repair, in Stores.
	FramePart
	// FrameEnd closes a repair. Last is the worker's sequence then.
	FrameEnd
	// FrameSweep frees some memory of workers that are gone. It names nobody.
	FrameSweep
)

// Limits of a frame.
const (
	// MaxFrameBlocks is the most blocks a frame names, 16 KiB of them.
	MaxFrameBlocks = 2048
	maxWorkerID    = 128
)

// Frame is one step in the life of a [State]: what a worker's cache gained and
// lost between two moments, or a part of a repair.
type Frame struct {
	Kind   FrameKind
	Worker fleet.WorkerID
	Epoch  fleet.Epoch
	// First and Last number the changes that a delta tells, by the worker's own
	// count from 1: one for each block, and one for Cleared. A block that came and
	// went before the frame was cut is in no frame and has no number.
	First, Last uint64
	Cleared     bool
	Stores      []Hash
	Removes     []Hash
	// Repair numbers a worker's repairs, Part the parts of one from 0; in FrameEnd
	// Part is how many there were.
	Repair uint64
	Part   uint32
	// Buckets are those under repair.
	Buckets Buckets
	// Sum is the [Sums.Total] of all that the worker holds after a delta or the
	// end of a repair.
	Sum uint64
}

// ErrMalformed means that bytes or a frame are not what they claim to be.
var ErrMalformed = errors.New("prefix: malformed")

// Validate reports why a frame cannot be one of its kind. Errors wrap
// [ErrMalformed].
func (f *Frame) Validate() error {
	blocks := len(f.Stores) + len(f.Removes)
	switch {
	case f.Kind < FrameAttach || f.Kind > FrameSweep:
		return fmt.Errorf("%w: frame kind %d", ErrMalformed, f.Kind)
	case f.Kind == FrameSweep:
		return nil
	case f.Worker == "" || len(f.Worker) > maxWorkerID || f.Epoch == 0:
		return fmt.Errorf("%w: frame of no incarnation", ErrMalformed)
	case blocks > MaxFrameBlocks:
		return fmt.Errorf("%w: frame of %d blocks", ErrMalformed, blocks)
	case f.Kind == FrameDelta:
		return f.validateDelta(blocks)
	case blocks > 0 && (f.Kind != FramePart || len(f.Removes) > 0):
		return fmt.Errorf("%w: frame kind %d names blocks", ErrMalformed, f.Kind)
	}
	return nil
}

func (f *Frame) validateDelta(blocks int) error {
	changes := uint64(blocks)
	if f.Cleared {
		changes++
	}
	if changes == 0 || f.First == 0 || f.Last < f.First || f.Last-f.First != changes-1 {
		return fmt.Errorf("%w: changes %d to %d in a frame of %d", ErrMalformed, f.First, f.Last, changes)
	}
	return nil
}

// String says what a frame is, for logs; it names no block.
func (f *Frame) String() string {
	return fmt.Sprintf("frame kind %d of %s/%d, changes %d to %d", f.Kind, f.Worker, f.Epoch, f.First, f.Last)
}

// NumBuckets is how many buckets a worker's blocks are divided into. A repair
// compares and tells them one by one.
const NumBuckets = 256

// Bucket is the bucket of a block.
func (h Hash) Bucket() uint8 { return uint8(h >> 56) }

// Buckets is a set of buckets.
type Buckets [NumBuckets / 64]uint64

// Add puts b into the set.
func (s *Buckets) Add(b uint8) { s[b/64] |= 1 << (b % 64) }

// Has reports whether b is in the set.
func (s *Buckets) Has(b uint8) bool { return s[b/64]>>(b%64)&1 != 0 }

// Len is the number of buckets in the set.
func (s *Buckets) Len() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// Sums are checksums of a set of blocks, one for each bucket, independent of
// the order in which the blocks came.
type Sums [NumBuckets]uint64

// Add enters a block, Drop takes it out.
func (s *Sums) Add(h Hash) { s[h.Bucket()] += mix.Next(uint64(h)) }

// Drop takes a block out.
func (s *Sums) Drop(h Hash) { s[h.Bucket()] -= mix.Next(uint64(h)) }

// Total is one checksum of all buckets.
func (s *Sums) Total() (sum uint64) {
	for _, b := range s {
		sum += b
	}
	return sum
}

// Diff is the set of buckets in which s and other differ.
func (s *Sums) Diff(other *Sums) (diff Buckets) {
	for b := range s {
		if s[b] != other[b] {
			diff.Add(uint8(b))
		}
	}
	return diff
}

// Sum is what a block adds to checksums.
func (h Hash) Sum() uint64 { return mix.Next(uint64(h)) }
