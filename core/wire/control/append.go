package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/yardmaster/yardmaster/core/prefix"
)

var errNotUTF8 = errors.New("a worker id that is not UTF-8")

// AppendFrame appends the encoding of f, the same for equal frames. It
// allocates nothing where dst has room: [FrameSize] says how much that is. f is
// not checked, but an id that no reader would take is an error.
func AppendFrame(dst []byte, f *prefix.Frame) ([]byte, error) {
	if !utf8.ValidString(string(f.Worker)) {
		return dst, fmt.Errorf("control: %w", errNotUTF8)
	}
	dst = appendNumber(dst, fieldKind, uint64(f.Kind))
	if f.Worker != "" {
		dst = protowire.AppendTag(dst, fieldWorker, protowire.BytesType)
		dst = protowire.AppendString(dst, string(f.Worker))
	}
	dst = appendNumber(dst, fieldEpoch, uint64(f.Epoch))
	dst = appendNumber(dst, fieldFirst, f.First)
	dst = appendNumber(dst, fieldLast, f.Last)
	dst = appendNumber(dst, fieldCleared, protowire.EncodeBool(f.Cleared))
	dst = appendWords(dst, fieldStores, f.Stores)
	dst = appendWords(dst, fieldRemoves, f.Removes)
	dst = appendNumber(dst, fieldRepair, f.Repair)
	dst = appendNumber(dst, fieldPart, uint64(f.Part))
	if f.Buckets != (prefix.Buckets{}) {
		dst = appendWords(dst, fieldBuckets, f.Buckets[:])
	}
	if f.Sum != 0 {
		dst = protowire.AppendTag(dst, fieldSum, protowire.Fixed64Type)
		dst = protowire.AppendFixed64(dst, f.Sum)
	}
	return dst, nil
}

// FrameSize is an upper bound of the bytes that AppendFrame appends.
func FrameSize(f *prefix.Frame) int {
	const fixed = 160 // tags, numbers and buckets at their longest
	return fixed + len(f.Worker) + 8*(len(f.Stores)+len(f.Removes))
}

// appendNumber appends a varint field, which is absent when zero.
func appendNumber(dst []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, num, protowire.VarintType), v)
}

// appendWords appends a packed list, which is absent when empty.
func appendWords[W ~uint64](dst []byte, num protowire.Number, words []W) []byte {
	if len(words) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(8*len(words)))
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(w))
	}
	return dst
}
