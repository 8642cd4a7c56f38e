package rollout

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/table"
)

// Bounds of policies' states; see those of versions.
const (
	MaxStateKeys  = 1024     // of one policy
	MaxStateKey   = 128      // bytes
	MaxStateValue = 4 << 10  // bytes
	MaxStates     = 32 << 20 // bytes of all policies' keys and values
	MaxWrites     = 256      // of one batch
)

// State is what the versions of one policy have written, under the policy's name.
// It is immutable; nil is empty.
type State struct {
	rows  table.Table[held]
	index uint64
	bytes int
	sum   uint64 // of all rows' sums
}

// Get returns the value under a key, and whether there is one. Do not modify it.
func (s *State) Get(key string) (value []byte, ok bool) {
	if s == nil {
		return nil, false
	}
	h, ok := s.rows.Get(key)
	return h.value, ok
}

// All goes through the values by key. Do not modify them.
func (s *State) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, row := range s.all() {
			if !yield(row.Key, row.Value.value) {
				return
			}
		}
	}
}

func (s *State) all() []table.Row[held] {
	if s == nil {
		return nil
	}
	return s.rows.Rows()
}

// Len is the number of keys.
func (s *State) Len() int { return len(s.all()) }

// Sum is a checksum of all keys and values, to compare nodes by.
func (s *State) Sum() uint64 {
	if s == nil {
		return 0
	}
	return s.sum
}

// Index is the Raft index of the last write.
func (s *State) Index() uint64 {
	if s == nil {
		return 0
	}
	return s.index
}

// WriteOp is what a write does. Its numbers are for ever.
type WriteOp uint8

// The operations.
const (
	WriteSet    WriteOp = 1 // puts Value under Key
	WriteAdd    WriteOp = 2 // adds Delta to the number under Key; what is none counts as 0
	WriteDelete WriteOp = 3
)

// Write is one write to a policy's state.
type Write struct {
	Op    WriteOp
	Key   string
	Value []byte // of set; the table keeps it
	Delta int64  // of add
}

// Number reads a value that add has written: 8 bytes, the lowest first. A value
// of another length is 0.
func Number(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(value))
}

// NumberValue is the value that Number reads.
func NumberValue(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func (w *Write) validate() error {
	switch {
	case w.Op < WriteSet || w.Op > WriteDelete:
		return fmt.Errorf("%w: write operation %d", ErrInvalid, w.Op)
	case w.Key == "" || len(w.Key) > MaxStateKey:
		return fmt.Errorf("%w: a key of %d bytes; it has from 1 to %d", ErrInvalid, len(w.Key), MaxStateKey)
	case len(w.Value) > MaxStateValue:
		return fmt.Errorf("%w: a value of %d bytes under %.80q; it may have up to %d", ErrInvalid, len(w.Value), w.Key, MaxStateValue)
	}
	return nil
}

// ValidateWrites reports the first fault of a batch. Errors wrap ErrInvalid.
func ValidateWrites(writes []Write) error {
	if len(writes) == 0 || len(writes) > MaxWrites {
		return fmt.Errorf("%w: a batch of %d writes; it has from 1 to %d", ErrInvalid, len(writes), MaxWrites)
	}
	for i := range writes {
		if err := writes[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// State is what a policy has written; nil if nothing.
func (t *Table) State(policy string) *State {
	s, _ := t.states.Get(policy)
	return s
}

// WriteState carries out a batch of writes in order, all or, on an error, none.
// Errors wrap ErrInvalid, ErrUnknown for a policy without a version, or ErrFull.
func (t *Table) WriteState(policy string, writes []Write, index uint64) (*Table, error) {
	if err := ValidateWrites(writes); err != nil {
		return t, err
	}
	if !t.hasPolicy(policy) {
		return t, fmt.Errorf("%w: no policy %.80q", ErrUnknown, policy)
	}
	old := t.State(policy)
	state := old.after(writes)
	held := t.held + state.bytes
	if old != nil {
		held -= old.bytes
	}
	switch {
	case state.rows.Len() > MaxStateKeys:
		return t, fmt.Errorf("%w: the state of %s may have %d keys", ErrFull, policy, MaxStateKeys)
	case held > MaxStates:
		return t, fmt.Errorf("%w: the states of all policies may have %d MiB", ErrFull, MaxStates>>20)
	}
	state.index = index
	next := *t
	next.held, next.states = held, t.states.With(policy, state)
	return &next, nil
}

func (t *Table) hasPolicy(name string) bool {
	return slices.ContainsFunc(t.versions.Rows(), func(r table.Row[*Version]) bool { return r.Value.Policy == name })
}

// drop forgets a policy's state, of a table that nobody has seen yet.
func (t *Table) drop(policy string) {
	if s := t.State(policy); s != nil {
		t.held -= s.bytes
		t.states = t.states.Without(policy)
	}
}

// after is the state after writes. It takes the rows once and not once a write.
func (s *State) after(writes []Write) *State {
	order := make([]int, len(writes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(writes[a].Key, writes[b].Key) })
	next, rows := &State{}, s.all()
	for len(order) > 0 {
		key := writes[order[0]].Key
		for len(rows) > 0 && rows[0].Key < key {
			next.add(rows[0].Key, rows[0].Value)
			rows = rows[1:]
		}
		var value []byte
		there := len(rows) > 0 && rows[0].Key == key
		if there {
			value, rows = rows[0].Value.value, rows[1:]
		}
		for len(order) > 0 && writes[order[0]].Key == key {
			value, there = writes[order[0]].on(value)
			order = order[1:]
		}
		if there {
			next.add(key, newValue(key, value))
		}
	}
	for _, row := range rows {
		next.add(row.Key, row.Value)
	}
	return next
}

// on is the value after a write, and whether there is one.
func (w *Write) on(value []byte) ([]byte, bool) {
	switch w.Op {
	case WriteAdd:
		return NumberValue(Number(value) + w.Delta), true
	case WriteDelete:
		return nil, false
	case WriteSet:
	}
	return w.Value, true
}
