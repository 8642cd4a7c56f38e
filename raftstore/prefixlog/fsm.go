package prefixlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// FSM applies the log to a state, which only it may change. Its methods are
// called one at a time, but for Verify and Applied.
type FSM struct {
	state   *prefix.State
	applied atomic.Uint64
	frame   prefix.Frame // used for one after the other
}

// New is an FSM for an empty state.
func New(state *prefix.State) *FSM { return &FSM{state: state} }

// State is the state. Do not change it.
func (f *FSM) State() *prefix.State { return f.state }

// Apply applies an entry and gives the outcome of each of its frames, none of an
// entry that may be skipped. An entry that cannot be applied changes nothing,
// and must stop the node. Errors wrap ErrMalformed or ErrUnknownEntry.
func (f *FSM) Apply(index uint64, entry []byte) ([]prefix.Outcome, error) {
	frames := 0
	if err := each(entry, &f.frame, func(*prefix.Frame) error {
		frames++
		return nil
	}); err != nil {
		return nil, fmt.Errorf("entry %d: %w", index, err)
	}
	outcomes := make([]prefix.Outcome, 0, frames)
	err := each(entry, &f.frame, func(frame *prefix.Frame) error {
		outcomes = append(outcomes, f.state.Apply(frame))
		return nil
	})
	f.applied.Store(index)
	return outcomes, err // never an error: it was read before
}

// Applied is the last entry in the state.
func (f *FSM) Applied() uint64 { return f.applied.Load() }

// Digest is the state's.
func (f *FSM) Digest() uint64 { return f.state.Digest() }

var le = binary.LittleEndian

// The snapshot is one section of our own, and then the state's snapshot, which
// has its own beginning and end.
const (
	snapshotMagic   = "YMPLOG\x01\n"
	sectionHead     = 1
	sectionVersion  = 1
	sectionHeadSize = 8
)

// Snapshot captures the state. Release it.
func (f *FSM) Snapshot() io.WriterTo {
	return &capture{applied: f.applied.Load(), state: f.state.Snapshot()}
}

type capture struct {
	applied uint64
	state   *prefix.Snapshot
}

// WriteTo writes the snapshot, once.
func (s *capture) WriteTo(w io.Writer) (int64, error) {
	out := section.NewWriter(w, snapshotMagic)
	out.Write(sectionHead, sectionVersion, func(b []byte) []byte { return le.AppendUint64(b, s.applied) })
	n, err := out.Result()
	if err != nil {
		return n, err
	}
	m, err := s.state.WriteTo(w)
	return n + m, err
}

// Release lets the state go on without copying.
func (s *capture) Release() { s.state.Release() }

// Restore replaces the state by a snapshot, all of it or, on an error, nothing.
// Errors wrap ErrMalformed or ErrUnknownEntry.
func (f *FSM) Restore(r io.Reader) error { return f.restore(f.state, &f.applied, r) }

// Verify reports why Restore would refuse a snapshot. It takes the memory of one.
func (f *FSM) Verify(r io.Reader) error {
	var applied atomic.Uint64
	return f.restore(prefix.NewState(prefix.Options{Budget: 1}), &applied, r)
}

func (f *FSM) restore(state *prefix.State, applied *atomic.Uint64, r io.Reader) error {
	index, err := readHead(r)
	if err == nil {
		err = state.Restore(r)
	}
	switch {
	case errors.Is(err, section.ErrFormat):
		return fmt.Errorf("prefix snapshot: %w: %w", ErrUnknownEntry, err)
	case errors.Is(err, ErrUnknownEntry):
		return err
	case err != nil:
		return fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	applied.Store(index)
	return nil
}

func readHead(r io.Reader) (applied uint64, err error) {
	in, err := section.NewReader(r, snapshotMagic)
	if err != nil {
		return 0, err
	}
	kind, version, payload, err := in.Next()
	switch {
	case err != nil:
		return 0, err
	case kind != sectionHead || version != sectionVersion:
		return 0, fmt.Errorf("section %d of version %d: %w", kind, version, ErrUnknownEntry)
	case len(payload) != sectionHeadSize:
		return 0, fmt.Errorf("%w: head of %d bytes", ErrMalformed, len(payload))
	}
	return le.Uint64(payload), nil
}
