package load

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// MaxGateways is the most gateways that a merger adds up.
const MaxGateways = 256

// maxEarly bounds the incarnations that gateways name and the merger's view does
// not show yet.
const maxEarly = 1024

var (
	// ErrReplaced means that the member's gateway has joined again, or that a
	// later incarnation of it has.
	ErrReplaced = errors.New("the gateway has joined anew")
	// ErrTooMany means that MaxGateways are reached, or that a gateway names more
	// incarnations than the fleet can have.
	ErrTooMany = errors.New("too many for the load hub")
)

// Merger adds up what gateways have in flight and tells each what the others
// have. A gateway's word is absolute and its own; it vanishes when the gateway
// leaves. The sums of a worker vanish with its epoch. It is safe for concurrent
// use.
type Merger struct {
	mu      sync.Mutex
	view    *fleet.View
	row     map[uint64]int // by epoch
	epoch   []uint64       // by row; 0 is a free row
	total   []Counts       // by row
	free    []int
	early   int // rows that view does not show yet
	members []*Member
}

// NewMerger is a merger of no gateways.
func NewMerger() *Merger { return &Merger{row: map[uint64]int{}} }

// Member is one gateway's part in a merger.
type Member struct {
	merger      *Merger
	id          string
	incarnation uint64
	own         []Counts // by row; may be shorter
	pending     []uint64 // a bit for each row of which the others' part changed
	fresh       bool     // it was told nothing yet
	left        bool
	ready       chan struct{}
}

// Join makes the gateway a member that has what v says, which must be valid; one
// that it was before is replaced in the same step. An incarnation below that of
// the member there is refused with ErrReplaced. ErrTooMany is the other error.
func (m *Merger) Join(gateway string, incarnation uint64, v *Vector) (*Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.members, func(x *Member) bool { return x.id == gateway }); i >= 0 {
		if m.members[i].incarnation > incarnation {
			return nil, fmt.Errorf("gateway %q: %w", gateway, ErrReplaced)
		}
		m.leave(m.members[i])
	}
	if len(m.members) >= MaxGateways {
		return nil, fmt.Errorf("%w: %d gateways", ErrTooMany, MaxGateways)
	}
	x := &Member{merger: m, id: gateway, incarnation: incarnation, fresh: true, ready: make(chan struct{}, 1)}
	x.signal()
	m.members = append(m.members, x)
	if err := x.update(v); err != nil {
		m.leave(x)
		return nil, err
	}
	return x, nil
}

// Gateways is the number of members.
func (m *Merger) Gateways() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.members)
}

// Follow drops the sums of incarnations that are not in view, unless they are
// newer than it. An older view than the last is ignored.
func (m *Merger) Follow(view *fleet.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if view == nil || view == m.view || m.view != nil && view.Index < m.view.Index {
		return
	}
	m.view = view
	live := make(map[uint64]bool, len(view.Workers))
	for i := range view.Workers {
		live[uint64(view.Workers[i].Epoch)] = true
	}
	m.early = 0
	for row, epoch := range m.epoch {
		switch {
		case epoch == 0 || live[epoch]:
		case epoch > view.Index:
			m.early++
		default:
			m.release(row)
		}
	}
	for i := range view.Workers {
		m.claim(uint64(view.Workers[i].Epoch))
	}
}

// claim is the row of epoch, made if need be; -1 when there is no room.
func (m *Merger) claim(epoch uint64) int {
	if row, ok := m.row[epoch]; ok {
		return row
	}
	row := len(m.epoch)
	switch n := len(m.free); {
	case n > 0:
		row = m.free[n-1]
		m.free = m.free[:n-1]
	case row < MaxWorkers:
		m.epoch, m.total = append(m.epoch, 0), append(m.total, Counts{})
	default:
		return -1
	}
	m.row[epoch], m.epoch[row] = row, epoch
	return row
}

// release frees a row. What members had there is forgotten.
func (m *Merger) release(row int) {
	for _, x := range m.members {
		if row < len(x.own) {
			x.own[row] = Counts{}
		}
		if word := row / 64; word < len(x.pending) {
			x.pending[word] &^= 1 << (row % 64)
		}
	}
	delete(m.row, m.epoch[row])
	m.epoch[row], m.total[row] = 0, Counts{}
	m.free = append(m.free, row)
}

// rowOf is the row of an incarnation that a gateway named; -1 is one that is
// gone.
func (m *Merger) rowOf(epoch uint64) (int, error) {
	if row, ok := m.row[epoch]; ok {
		return row, nil
	}
	if m.view != nil && epoch <= m.view.Index {
		return -1, nil
	}
	// The gateway's view is ahead, or it makes epochs up.
	if m.early >= maxEarly {
		m.sweep()
	}
	if m.early >= maxEarly {
		return -1, fmt.Errorf("%w: %d incarnations that nobody knows", ErrTooMany, maxEarly)
	}
	row := m.claim(epoch)
	if row < 0 {
		return -1, fmt.Errorf("%w: %d incarnations", ErrTooMany, MaxWorkers)
	}
	m.early++
	return row, nil
}

// sweep frees the rows of incarnations that the view does not show and where
// nobody has anything nor is owed the news of it.
func (m *Merger) sweep() {
	for row, epoch := range m.epoch {
		if epoch == 0 || m.total[row] != (Counts{}) || m.view != nil && epoch <= m.view.Index {
			continue
		}
		if !slices.ContainsFunc(m.members, func(x *Member) bool { return x.owed(row) }) {
			m.release(row)
			m.early--
		}
	}
}

func (x *Member) owed(row int) bool {
	return row/64 < len(x.pending) && x.pending[row/64]&(1<<(row%64)) != 0
}

// Update replaces what the gateway has. v must be valid. Errors are ErrReplaced
// and ErrTooMany; after either the member should leave.
func (x *Member) Update(v *Vector) error {
	x.merger.mu.Lock()
	defer x.merger.mu.Unlock()
	if x.left {
		return ErrReplaced
	}
	if v.Whole {
		x.clear()
	}
	return x.update(v)
}

// update replaces what v names. The caller holds the lock.
func (x *Member) update(v *Vector) error {
	for i, epoch := range v.Epoch {
		row, err := x.merger.rowOf(epoch)
		if err != nil {
			return err
		}
		if row >= 0 {
			x.set(row, v.At(i))
		}
	}
	return nil
}

func (x *Member) clear() {
	for row, c := range x.own {
		if c != (Counts{}) {
			x.set(row, Counts{})
		}
	}
}

func (x *Member) set(row int, c Counts) {
	if row >= len(x.own) {
		if c == (Counts{}) {
			return
		}
		x.own = append(x.own, make([]Counts, row+1-len(x.own))...)
	}
	m, old := x.merger, x.own[row]
	if old == c {
		return
	}
	m.total[row] = m.total[row].minus(old).plus(c)
	x.own[row] = c
	x.signal() // that its word was taken in is news to it too
	for _, other := range m.members {
		if other != x {
			other.pend(row)
		}
	}
}

func (x *Member) pend(row int) {
	for row/64 >= len(x.pending) {
		x.pending = append(x.pending, 0)
	}
	x.pending[row/64] |= 1 << (row % 64)
	x.signal()
}

func (x *Member) signal() {
	select {
	case x.ready <- struct{}{}:
	default:
	}
}

// Ready has a value when there is something to take, the member's own word was
// taken in, or the member was replaced.
// Other times it may have one too.
func (x *Member) Ready() <-chan struct{} { return x.ready }

// Take replaces v's content by what the other gateways have, where that changed
// since it was last taken; the first time v is whole. ok is false when nothing
// did. The error is ErrReplaced.
func (x *Member) Take(v *Vector) (ok bool, err error) {
	m := x.merger
	m.mu.Lock()
	defer m.mu.Unlock()
	v.Reset()
	if x.left {
		return false, ErrReplaced
	}
	if x.fresh {
		x.fresh, v.Whole = false, true
		clear(x.pending)
		for row, epoch := range m.epoch {
			if c := x.othersAt(row); epoch != 0 && c != (Counts{}) {
				v.Add(epoch, c)
			}
		}
		return true, nil
	}
	for i, word := range x.pending {
		x.pending[i] = 0
		for ; word != 0; word &= word - 1 {
			row := i*64 + bits.TrailingZeros64(word)
			v.Add(m.epoch[row], x.othersAt(row))
		}
	}
	return v.Len() > 0, nil
}

func (x *Member) othersAt(row int) Counts {
	if row < len(x.own) {
		return x.merger.total[row].minus(x.own[row])
	}
	return x.merger.total[row]
}

// Leave takes what the gateway has out of the sums. Leaving again does nothing.
func (x *Member) Leave() {
	x.merger.mu.Lock()
	defer x.merger.mu.Unlock()
	x.merger.leave(x)
}

func (m *Merger) leave(x *Member) {
	if x.left {
		return
	}
	x.clear()
	x.left = true
	x.signal()
	m.members = slices.DeleteFunc(m.members, func(other *Member) bool { return other == x })
}
