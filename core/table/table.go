package table

import (
	"cmp"
	"slices"
)

// Row is one key with its value.
type Row[V any] struct {
	Key   string
	Value V
}

// Table maps keys to values, in the order of the keys. The zero value is empty.
// It is immutable and may be copied and shared freely.
type Table[V any] struct{ rows []Row[V] }

// Same reports whether t and u are one table and not only equal: no change that
// made another lies between them.
func (t Table[V]) Same(u Table[V]) bool {
	return len(t.rows) == len(u.rows) && (len(t.rows) == 0 || &t.rows[0] == &u.rows[0])
}

// Len is the number of rows.
func (t Table[V]) Len() int { return len(t.rows) }

// Rows lists the rows by key. Do not modify it.
func (t Table[V]) Rows() []Row[V] { return t.rows }

// Get returns the value under key, and whether there is one.
func (t Table[V]) Get(key string) (v V, ok bool) {
	i, ok := t.find(key)
	if !ok {
		return v, false
	}
	return t.rows[i].Value, true
}

// With is t with v under key, in place of what was there.
func (t Table[V]) With(key string, v V) Table[V] {
	i, found := t.find(key)
	rows := make([]Row[V], 0, len(t.rows)+1)
	rows = append(append(rows, t.rows[:i]...), Row[V]{key, v})
	if found {
		i++
	}
	return Table[V]{append(rows, t.rows[i:]...)}
}

// Without is t without key: t itself where there is none.
func (t Table[V]) Without(key string) Table[V] {
	i, found := t.find(key)
	if !found {
		return t
	}
	return Table[V]{slices.Concat(t.rows[:i], t.rows[i+1:])}
}

// Edit is t with what change makes of every value.
func (t Table[V]) Edit(change func(key string, v V) V) Table[V] {
	rows := make([]Row[V], len(t.rows))
	for i, r := range t.rows {
		rows[i] = Row[V]{r.Key, change(r.Key, r.Value)}
	}
	return Table[V]{rows}
}

// Append is t with a row behind all others, which takes constant time where t
// is not used any more: it is how a table is read back in order. ok is false,
// and t unchanged, when key is not beyond the last.
func (t Table[V]) Append(key string, v V) (_ Table[V], ok bool) {
	if n := len(t.rows); n > 0 && t.rows[n-1].Key >= key {
		return t, false
	}
	return Table[V]{append(t.rows, Row[V]{key, v})}, true
}

func (t Table[V]) find(key string) (int, bool) {
	return slices.BinarySearchFunc(t.rows, key, func(r Row[V], key string) int { return cmp.Compare(r.Key, key) })
}
