package live

import (
	"sync"
	"unsafe"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// Bounds of the state that a node keeps for one policy.
const (
	mostLocalKeys  = rollout.MaxStateKeys
	mostLocalBytes = 1 << 20
	mostLocals     = 2 * rollout.MaxPolicies
)

// local is a node's own state of one policy: what was not used for the longest time
// makes room for what is new. It is safe for concurrent use.
type local struct {
	mu    sync.Mutex
	rows  map[string]*localRow
	ends  localRow // of a ring: next was used last, prev is the oldest
	bytes int
}

type localRow struct {
	key        string
	value      []byte
	prev, next *localRow
}

func newLocal() *local {
	l := &local{rows: map[string]*localRow{}}
	l.ends.prev, l.ends.next = &l.ends, &l.ends
	return l
}

func (r *localRow) unlink() { r.prev.next, r.next.prev = r.next, r.prev }

// front puts a row where what was used last is.
func (l *local) front(r *localRow) {
	r.prev, r.next = &l.ends, l.ends.next
	r.prev.next, r.next.prev = r, r
}

// get copies the value into buf as far as it fits, and returns its length, or -1.
func (l *local) get(key, buf []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rows[string(key)]
	if r == nil {
		return -1
	}
	r.unlink()
	l.front(r)
	copy(buf, r.value)
	return len(r.value)
}

func (l *local) set(key, value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(key, value)
}

func (l *local) put(key, value []byte) {
	r := l.rows[string(key)]
	if r == nil {
		r = &localRow{key: string(key)}
		l.rows[r.key] = r
		l.bytes += len(key)
	} else {
		r.unlink()
	}
	l.bytes += len(value) - len(r.value)
	r.value = append(r.value[:0], value...)
	l.front(r)
	for len(l.rows) > mostLocalKeys || l.bytes > mostLocalBytes {
		oldest := l.ends.prev
		oldest.unlink()
		delete(l.rows, oldest.key)
		l.bytes -= len(oldest.key) + len(oldest.value)
	}
}

func (l *local) add(key []byte, delta int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := delta
	if r := l.rows[string(key)]; r != nil {
		sum += rollout.Number(r.value)
	}
	l.put(key, rollout.NumberValue(sum))
	return sum
}

// locals are all policies' states of this node.
type locals struct {
	mu sync.Mutex
	by map[string]*local
}

// of is the state of that name. With too many, one that is not kept makes room.
func (l *locals) of(name string, kept func(string) bool) *local {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.by[name]; s != nil {
		return s
	}
	if len(l.by) >= mostLocals {
		for other := range l.by {
			if !kept(other) {
				delete(l.by, other)
			}
		}
	}
	s := newLocal()
	l.by[name] = s
	return s
}

// text views b as a string without copying. b must not change while it lives.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
