package control

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// FromFrame is f as a message.
func FromFrame(f *prefix.Frame) *PrefixFrame {
	m := &PrefixFrame{
		Kind: uint32(f.Kind), Worker: string(f.Worker), Epoch: uint64(f.Epoch),
		First: f.First, Last: f.Last, Cleared: f.Cleared, Repair: f.Repair, Part: f.Part, Sum: f.Sum,
		Stores: fromHashes(f.Stores), Removes: fromHashes(f.Removes),
	}
	if f.Buckets != (prefix.Buckets{}) {
		m.Buckets = append(m.Buckets, f.Buckets[:]...)
	}
	return m
}

// ToFrame reads a frame out of m, which may be nil. A frame that comes back is
// valid; errors wrap prefix.ErrMalformed.
func ToFrame(m *PrefixFrame) (prefix.Frame, error) {
	if m.GetKind() > uint32(^prefix.FrameKind(0)) {
		return prefix.Frame{}, fmt.Errorf("%w: frame kind %d", prefix.ErrMalformed, m.GetKind())
	}
	if n := len(m.GetStores()) + len(m.GetRemoves()); n > prefix.MaxFrameBlocks {
		return prefix.Frame{}, fmt.Errorf("%w: frame of %d blocks", prefix.ErrMalformed, n)
	}
	f := prefix.Frame{
		Kind: prefix.FrameKind(m.GetKind()), Worker: fleet.WorkerID(m.GetWorker()), Epoch: fleet.Epoch(m.GetEpoch()),
		First: m.GetFirst(), Last: m.GetLast(), Cleared: m.GetCleared(), Repair: m.GetRepair(), Part: m.GetPart(), Sum: m.GetSum(),
		Stores: toHashes(m.GetStores()), Removes: toHashes(m.GetRemoves()),
	}
	switch len(m.GetBuckets()) {
	case 0:
	case len(f.Buckets):
		f.Buckets = prefix.Buckets(m.GetBuckets())
	default:
		return prefix.Frame{}, fmt.Errorf("%w: a set of buckets in %d words", prefix.ErrMalformed, len(m.GetBuckets()))
	}
	return f, f.Validate()
}

// ParseFrame reads what AppendFrame wrote. Errors wrap prefix.ErrMalformed.
func ParseFrame(b []byte) (prefix.Frame, error) {
	var m PrefixFrame
	if err := proto.Unmarshal(b, &m); err != nil {
		return prefix.Frame{}, fmt.Errorf("%w: %w", prefix.ErrMalformed, err)
	}
	return ToFrame(&m)
}

// FromPosition is p as a message.
func FromPosition(p *prefix.Position) *PrefixPosition {
	m := &PrefixPosition{Last: p.Last, Exact: p.Exact, Repair: p.Repair}
	if p.Sums != (prefix.Sums{}) {
		m.Sums = append(m.Sums, p.Sums[:]...)
	}
	return m
}

// ToPosition reads a position out of m, which may be nil. Errors wrap
// prefix.ErrMalformed.
func ToPosition(m *PrefixPosition) (prefix.Position, error) {
	p := prefix.Position{Last: m.GetLast(), Exact: m.GetExact(), Repair: m.GetRepair()}
	switch len(m.GetSums()) {
	case 0:
	case len(p.Sums):
		p.Sums = prefix.Sums(m.GetSums())
	default:
		return p, fmt.Errorf("%w: %d bucket sums", prefix.ErrMalformed, len(m.GetSums()))
	}
	return p, nil
}

func fromHashes(hashes []prefix.Hash) []uint64 {
	if len(hashes) == 0 {
		return nil
	}
	out := make([]uint64, len(hashes))
	for i, h := range hashes {
		out[i] = uint64(h)
	}
	return out
}

func toHashes(words []uint64) []prefix.Hash {
	if len(words) == 0 {
		return nil
	}
	out := make([]prefix.Hash, len(words))
	for i, w := range words {
		out[i] = prefix.Hash(w)
	}
	return out
}
