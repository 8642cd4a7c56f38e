package host

import (
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
)

// PauseAbove is the budget above which calls pause, and pauseEvery how often, in
// units of fuel. A collection waits for a guest about five times, to begin, to look at
// its stack and to end. At the worst a unit takes 20 to 37 ns, so that it waits 3.7 ms
// each for a call without pauses, and 0.4 ms for one with.
const (
	PauseAbove = 100_000
	pauseEvery = 10_000
)

// initFuel is the budget of a guest's _initialize, of which Go's runtime needs half,
// and setupFuel what it has then to show its layout and take its params. Both are
// above PauseAbove: guests that have an _initialize pause in all their calls, and
// those that never pause have PauseAbove for the rest.
const (
	initFuel  = 20_000_000
	setupFuel = 1_000_000
)

// Metered is a module that has been checked and counts its fuel. It is not compiled.
type Metered struct {
	Manifest *abi.Manifest
	Wasm     []byte // the rewritten module: what is compiled

	slice  int64  // of fuel between pauses, or 0
	export string // the call by which it answers
}

// Pauses says whether calls come up for breath: their budget is large, or the guest
// has something to initialise.
func (m *Metered) Pauses() bool { return m.slice > 0 }

// Export is the call by which the policy answers, one of package abi's.
func (m *Metered) Export() string { return m.export }

// Prepare decodes, checks and meters an upload. Errors are those of package module,
// abi and meter.
func Prepare(wasm []byte) (*Metered, error) {
	m, err := module.Decode(wasm, module.Options{Imports: abi.Imports()})
	if err != nil {
		return nil, err
	}
	manifest, err := abi.Check(m)
	if err != nil {
		return nil, err
	}
	return Meter(m, manifest)
}

// Meter is the last part of Prepare, for a module that has been decoded and checked.
func Meter(m *module.Module, manifest *abi.Manifest) (*Metered, error) {
	options := meter.Options{Pages: manifest.Pages}
	if _, initialises := m.Export(abi.ExportInitialize); initialises || manifest.Fuel > PauseAbove {
		options.Slice = pauseEvery
	}
	wasm, err := meter.Rewrite(m, options)
	if err != nil {
		return nil, err
	}
	return &Metered{Manifest: manifest, Wasm: wasm, slice: options.Slice, export: answer(m, manifest.Kind)}, nil
}

// answer is the call by which a policy that has been checked answers.
func answer(m *module.Module, k abi.Kind) string {
	switch k {
	case abi.Router:
		if _, ok := m.Export(abi.ExportRoute); ok {
			return abi.ExportRoute
		}
		return abi.ExportScore
	case abi.Admission:
		return abi.ExportAdmit
	case abi.Autoscaler:
		return abi.ExportTick
	case abi.Observer:
		return abi.ExportObserve
	}
	return ""
}
