package control

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// ScanFrame is ParseFrame into a frame that is used again and again: it
// overwrites f and keeps the memory of its lists, so a frame costs no
// allocation but for its worker's id. After an error f is of no use but for
// another ScanFrame. Errors wrap prefix.ErrMalformed.
func ScanFrame(b []byte, f *prefix.Frame) error {
	s := frameScan{frame: f, worker: f.Worker}
	*f = prefix.Frame{Stores: f.Stores[:0], Removes: f.Removes[:0]}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return badFrame(n)
		}
		b = b[n:]
		if n = s.field(num, typ, b); n < 0 {
			return badFrame(n)
		}
		if s.err != nil {
			return s.err
		}
		b = b[n:]
	}
	return s.finish()
}

func badFrame(n int) error {
	return fmt.Errorf("%w: %w", prefix.ErrMalformed, protowire.ParseError(n))
}

// frameScan is a frame that is being read.
type frameScan struct {
	frame   *prefix.Frame
	worker  fleet.WorkerID // of the frame before; often the same
	kind    uint64
	buckets int // words read
	err     error
}

// The fields of PrefixFrame.
const (
	fieldKind = iota + 1
	fieldWorker
	fieldEpoch
	fieldFirst
	fieldLast
	fieldCleared
	fieldStores
	fieldRemoves
	fieldRepair
	fieldPart
	fieldBuckets
	fieldSum
)

// field reads one field's value and returns its length, or protowire's number
// of what is wrong. A field of a type that it does not have is skipped, as is
// an unknown one.
func (s *frameScan) field(num protowire.Number, typ protowire.Type, b []byte) int {
	switch typ {
	case protowire.VarintType:
		v, n := protowire.ConsumeVarint(b)
		if n >= 0 {
			s.number(num, v)
		}
		return n
	case protowire.Fixed64Type:
		v, n := protowire.ConsumeFixed64(b)
		if n >= 0 {
			s.word(num, v)
		}
		return n
	case protowire.BytesType:
		v, n := protowire.ConsumeBytes(b)
		if n >= 0 {
			s.bytes(num, v)
		}
		return n
	default:
		return protowire.ConsumeFieldValue(num, typ, b)
	}
}

func (s *frameScan) number(num protowire.Number, v uint64) {
	switch int(num) {
	case fieldKind:
		s.kind = uint64(uint32(v))
	case fieldEpoch:
		s.frame.Epoch = fleet.Epoch(v)
	case fieldFirst:
		s.frame.First = v
	case fieldLast:
		s.frame.Last = v
	case fieldCleared:
		s.frame.Cleared = protowire.DecodeBool(v)
	case fieldRepair:
		s.frame.Repair = v
	case fieldPart:
		s.frame.Part = uint32(v)
	}
}

func (s *frameScan) word(num protowire.Number, v uint64) {
	switch int(num) {
	case fieldStores, fieldRemoves:
		if len(s.frame.Stores)+len(s.frame.Removes) >= prefix.MaxFrameBlocks {
			s.err = fmt.Errorf("%w: frame of more than %d blocks", prefix.ErrMalformed, prefix.MaxFrameBlocks)
			return
		}
		if num == fieldStores {
			s.frame.Stores = append(s.frame.Stores, prefix.Hash(v))
		} else {
			s.frame.Removes = append(s.frame.Removes, prefix.Hash(v))
		}
	case fieldBuckets:
		if s.buckets < len(s.frame.Buckets) {
			s.frame.Buckets[s.buckets] = v
		}
		s.buckets++
	case fieldSum:
		s.frame.Sum = v
	}
}

func (s *frameScan) bytes(num protowire.Number, b []byte) {
	switch int(num) {
	case fieldWorker:
		switch {
		case !utf8.Valid(b):
			s.err = fmt.Errorf("%w: %w", prefix.ErrMalformed, errNotUTF8)
		case string(s.worker) == string(b):
			s.frame.Worker = s.worker
		default:
			s.frame.Worker = fleet.WorkerID(b)
		}
	case fieldStores, fieldRemoves, fieldBuckets:
		if len(b)%8 != 0 {
			s.err = fmt.Errorf("%w: a list that ends within a word", prefix.ErrMalformed)
		}
		for ; len(b) >= 8 && s.err == nil; b = b[8:] {
			s.word(num, binary.LittleEndian.Uint64(b))
		}
	}
}

func (s *frameScan) finish() error {
	if s.kind > uint64(^prefix.FrameKind(0)) {
		return fmt.Errorf("%w: frame kind %d", prefix.ErrMalformed, s.kind)
	}
	if s.buckets != 0 && s.buckets != len(s.frame.Buckets) {
		return fmt.Errorf("%w: a set of buckets in %d words", prefix.ErrMalformed, s.buckets)
	}
	s.frame.Kind = prefix.FrameKind(s.kind)
	return s.frame.Validate()
}
