package prefixlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Wire form of an entry:
//
//	byte 0   version, 1
//	byte 1   type, 1 is frames; bit 0x80 means that a node may skip it
//	rest     frames, each its length as a varint and a message of core/wire/control
const (
	entryVersion = 1
	entryFrames  = 1
	ignorable    = 0x80
	entryHeader  = 2
)

// MaxEntry bounds an entry, in bytes: the largest frame, and room for those that
// came with it.
const MaxEntry = 64 << 10

var (
	// ErrUnknownEntry means an entry of a newer release that must not be skipped.
	// The node has to stop: applying the rest without it would part it from the
	// others.
	ErrUnknownEntry = errors.New("written by a newer release of yardmaster; upgrade this node")
	// ErrMalformed means bytes that are not an entry or a snapshot.
	ErrMalformed = errors.New("prefix log: malformed")
)

// newEntry is an entry without frames.
func newEntry(capacity int) []byte {
	return append(make([]byte, 0, capacity), entryVersion, entryFrames)
}

// appendFrame appends an encoded frame to an entry.
func appendFrame(entry, frame []byte) []byte {
	return append(binary.AppendUvarint(entry, uint64(len(frame))), frame...)
}

// frameBytes is what a frame of n encoded bytes takes in an entry.
func frameBytes(n int) int { return n + (bits.Len(uint(n)|1)+6)/7 }

// each calls f for each frame of an entry, and for none of one that may be
// skipped. The frame is into, again and again. Errors wrap ErrMalformed or
// ErrUnknownEntry, or are f's.
func each(entry []byte, into *prefix.Frame, f func(*prefix.Frame) error) error {
	rest, err := body(entry)
	if err != nil {
		return err
	}
	for len(rest) > 0 {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return fmt.Errorf("%w: a frame of %d bytes in %d", ErrMalformed, size, len(rest))
		}
		if err := control.ScanFrame(rest[n:n+int(size)], into); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if err := f(into); err != nil {
			return err
		}
		rest = rest[n+int(size):]
	}
	return nil
}

// body is the frames of an entry, nothing if it may be skipped.
func body(entry []byte) ([]byte, error) {
	if len(entry) < entryHeader || len(entry) > MaxEntry {
		return nil, fmt.Errorf("%w: entry of %d bytes", ErrMalformed, len(entry))
	}
	version, kind := entry[0], entry[1]
	switch {
	case version != entryVersion:
		return nil, fmt.Errorf("prefix entry version %d, type %d: %w", version, kind, ErrUnknownEntry)
	case kind == entryFrames:
		return entry[entryHeader:], nil
	case kind&ignorable != 0:
		return nil, nil
	}
	return nil, fmt.Errorf("prefix entry type %d: %w", kind, ErrUnknownEntry)
}

// Check reports how many frames an entry has, and why it must not be proposed:
// an entry that cannot be applied stops every node. Whoever proposes what came
// from another node checks it first. Errors wrap ErrMalformed or ErrUnknownEntry.
func Check(entry []byte) (frames int, err error) {
	var into prefix.Frame
	err = each(entry, &into, func(*prefix.Frame) error {
		frames++
		return nil
	})
	return frames, err
}
