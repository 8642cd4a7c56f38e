// Package table has an immutable ordered map for replicated state of up to a
// few thousand rows: a change makes a new [Table] and leaves the old one as it
// was, so that a snapshot, or a reader, is one copy of the old value.
//
// A change copies the rows, 24 bytes each with a pointer as value, and nothing
// behind them. A search is binary. There is no lock and no map: the order, and
// so the bytes that are made of it, are those of the keys.
//
// It does not bound itself; who owns the state does.
package table
