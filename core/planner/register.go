package planner

import (
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/table"
)

// Register is a small value that the cluster agrees on.
type Register struct {
	Key     string
	Value   []byte // do not modify
	Version uint64 // Raft index of the last write; never 0, never again the same
}

// Register returns the register under key, and whether there is one.
func (m *Machine) Register(key string) (Register, bool) { return value(*m.registers.Load(), key) }

// Registers lists all registers by key, as of one index.
func (m *Machine) Registers() []Register { return values(*m.registers.Load()) }

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
	next := &Register{Key: c.Key, Value: c.Value, Version: index}
	publish(&m.registers, registers.With(c.Key, next))
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
func versionFits(want *uint64, old *Register) bool {
	return want == nil || *want == versionOf(old)
}

func versionOf(r *Register) uint64 {
	if r == nil {
		return 0
	}
	return r.Version
}

// conflict tells the proposer what the version is.
func conflict(old *Register) Result { return Result{Code: Conflict, Version: versionOf(old)} }

// publish makes next what readers see.
func publish[V any](p *atomic.Pointer[table.Table[V]], next table.Table[V]) { p.Store(&next) }
