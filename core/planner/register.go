package planner

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/table"
)

// Register is a small value that the cluster agrees on.
type Register struct {
	Key     string
	Value   []byte // do not modify
	Version uint64 // Raft index of the last write; never 0, never again the same
}

// register is a Register as the machine keeps it. It is immutable.
type register struct {
	Register
	sum uint64 // of the value, for Checksum
}

func newRegister(key string, value []byte, version uint64) *register {
	return &register{Register{Key: key, Value: value, Version: version}, xxhash.Sum64(value)}
}

// Register returns the register under key, and whether there is one.
func (m *Machine) Register(key string) (Register, bool) {
	r, ok := value(*m.registers.Load(), key)
	return r.Register, ok
}

// Registers lists all registers by key, as of one index.
func (m *Machine) Registers() []Register {
	rows := m.registers.Load().Rows()
	out := make([]Register, len(rows))
	for i, row := range rows {
		out[i] = row.Value.Register
	}
	return out
}

// setRegister: also a write of the value that stands there is a write, and
// gives the register a new version.
func (m *Machine) setRegister(index uint64, c SetRegister) Result {
	registers := *m.registers.Load()
	old, exists := registers.Get(c.Key)
	switch {
	case !c.sound():
		return Result{Code: Refused}
	case !versionFits(c.IfVersion, old):
		return conflict(old)
	case !exists && registers.Len() >= MaxRegisters:
		return Result{Code: Full}
	}
	// The value is the decoded entry's own copy.
	publish(&m.registers, registers.With(c.Key, newRegister(c.Key, c.Value, index)))
	return Result{Version: index, Changed: true}
}

func (m *Machine) deleteRegister(c DeleteRegister) Result {
	registers := *m.registers.Load()
	old, exists := registers.Get(c.Key)
	switch {
	case !soundKey(c.Key):
		return Result{Code: Refused}
	case !versionFits(c.IfVersion, old):
		return conflict(old)
	case !exists:
		return Result{}
	}
	publish(&m.registers, registers.Without(c.Key))
	return Result{Changed: true}
}

// versionFits reports whether a write that wants a version may go ahead; old is
// nil where there is no register, whose version is 0.
func versionFits(want *uint64, old *register) bool {
	return want == nil || *want == versionOf(old)
}

func versionOf(r *register) uint64 {
	if r == nil {
		return 0
	}
	return r.Version
}

// conflict tells the proposer what the version is.
func conflict(old *register) Result { return Result{Code: Conflict, Version: versionOf(old)} }

// publish makes next what readers see.
func publish[V any](p *atomic.Pointer[table.Table[V]], next table.Table[V]) { p.Store(&next) }
