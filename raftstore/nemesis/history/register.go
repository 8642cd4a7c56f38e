package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// RegisterKind is what is done to a register.
type RegisterKind uint8

// The operations on registers.
const (
	Read   RegisterKind = iota // linearizably
	Write                      // whatever stands there
	Swap                       // if the version is the one wanted
	Delete                     // whatever stands there
)

// RegisterOp is an operation on one register. No two may write the same value.
type RegisterOp struct {
	Kind  RegisterKind
	Value string // to be written
	Want  uint64 // the version that Swap wants, 0 for none
}

// RegisterAnswer is what the client was told.
type RegisterAnswer struct {
	Unknown  bool   // nothing else is known
	Exists   bool   // of a read
	Value    string // of a read
	Version  uint64 // read, or written, or in the way
	Conflict bool   // a swap found another version
}

// String is for histories that are told.
func (o RegisterOp) String() string {
	switch o.Kind {
	case Write:
		return "write " + o.Value
	case Swap:
		return fmt.Sprintf("swap %d for %s", o.Want, o.Value)
	case Delete:
		return "delete"
	case Read:
	}
	return "read"
}

// String is for histories that are told.
func (a RegisterAnswer) String() string {
	switch {
	case a.Unknown:
		return "unknown"
	case a.Conflict:
		return fmt.Sprintf("conflict with %d", a.Version)
	}
	return fmt.Sprintf("%s@%d", a.Value, a.Version)
}

// register is the state of one. A write whose answer never came leaves a version
// that is not known, only that it is above floor, until somebody sees it.
type register struct {
	exists  bool
	value   string
	version uint64 // 0 while it is not known
	floor   uint64 // the highest version known to have been
}

// at reports whether the version may be v, and is r with that known.
func (r register) at(v uint64) (register, bool) {
	switch {
	case v == 0 || !r.exists:
		return r, v == 0 && !r.exists
	case r.version == 0 && v > r.floor:
		r.version, r.floor = v, v
		return r, true
	}
	return r, r.version == v
}

func (r register) written(value string, version uint64) (register, bool) {
	return register{exists: true, value: value, version: version, floor: version}, version > r.floor
}

var registers = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Step: func(state, input, output any) []any {
		var next []any
		for _, s := range stepRegister(state.(register), input.(RegisterOp), output.(RegisterAnswer)) {
			next = append(next, s)
		}
		return next
	},
}).ToModel()

// stepRegister gives the states that may follow, none where the answer cannot be.
func stepRegister(r register, op RegisterOp, got RegisterAnswer) []register {
	if got.Unknown {
		return effects(r, op)
	}
	ok := false
	switch op.Kind {
	case Read:
		if r.exists != got.Exists || r.value != got.Value {
			return nil
		}
		r, ok = r.at(got.Version)
	case Write:
		r, ok = r.written(op.Value, got.Version)
	case Swap:
		if got.Conflict {
			r, ok = r.at(got.Version)
			ok = ok && got.Version != op.Want
			break
		}
		if r, ok = r.at(op.Want); ok {
			r, ok = r.written(op.Value, got.Version)
		}
	case Delete:
		r, ok = register{floor: r.floor}, true
	}
	if !ok {
		return nil
	}
	return []register{r}
}

// effects are what an operation does that takes effect and is not told of. That
// it has none is an effect after the end of the history.
func effects(r register, op RegisterOp) []register {
	unseen := register{exists: true, value: op.Value, floor: r.floor}
	switch op.Kind {
	case Write:
		return []register{unseen}
	case Delete:
		return []register{{floor: r.floor}}
	case Swap:
		fits, ok := r.at(op.Want)
		if !ok {
			return []register{r}
		}
		unseen.floor = fits.floor
		if fits == r { // the version was known before, or that there is none
			return []register{unseen}
		}
		return []register{unseen, r}
	case Read:
	}
	return []register{r}
}

// withoutUnseen leaves out what was written without an answer and never seen:
// it need not have happened, and each costs the search dearly. Where a version
// was seen that no answer explains, one of them did happen, and all stay.
func withoutUnseen(ops []porcupine.Operation) []porcupine.Operation {
	values, versions, odd := map[string]bool{}, map[uint64]bool{0: true}, []uint64(nil)
	for i := range ops {
		op, got := ops[i].Input.(RegisterOp), ops[i].Output.(RegisterAnswer)
		switch {
		case got.Unknown:
		case op.Kind == Read:
			values[got.Value], versions[got.Version] = true, true
		case got.Conflict:
			odd = append(odd, got.Version)
		default:
			versions[got.Version] = true
		}
		if !got.Conflict { // of a swap that was done, or may have been; else 0
			odd = append(odd, op.Want)
		}
	}
	for _, v := range odd {
		if !versions[v] {
			return ops
		}
	}
	var out []porcupine.Operation
	for i := range ops {
		op, got := ops[i].Input.(RegisterOp), ops[i].Output.(RegisterAnswer)
		if got.Unknown && (op.Kind == Read || (op.Kind != Delete && !values[op.Value])) {
			continue
		}
		out = append(out, ops[i])
	}
	return out
}
