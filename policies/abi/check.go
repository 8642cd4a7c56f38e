package abi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// ErrContract says that a module is no policy of ym/1: an export or its type is
// missing, or it imports what its manifest does not ask for.
var ErrContract = errors.New("not a policy")

// Check holds a module against the contract and returns its manifest, with
// defaults filled in. Errors wrap [ErrManifest] or [ErrContract] and name every
// problem.
func Check(m *module.Module) (*Manifest, error) {
	data, err := section(m)
	if err != nil {
		return nil, err
	}
	manifest, err := ParseManifest(data)
	if err != nil {
		return nil, err
	}
	var p problems
	checkExports(m, manifest.Kind, &p)
	checkMemory(m, manifest, &p)
	checkImports(m, manifest, &p)
	if len(p) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrContract, errors.Join(p...))
	}
	return manifest, nil
}

// section finds the manifest's bytes.
func section(m *module.Module) ([]byte, error) {
	var found [][]byte
	for _, c := range m.Custom {
		if c.Name == Section {
			found = append(found, c.Data)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("%w: the module has no custom section %q; build it with an SDK, and do not strip it", ErrManifest, Section)
	default:
		return nil, fmt.Errorf("%w: the module has %d custom sections %q", ErrManifest, len(found), Section)
	}
}

func checkExports(m *module.Module, k Kind, p *problems) {
	for _, e := range []entry{
		{ExportGuard, functype("", "")},
		{ExportLayout, functype("", "i")},
		{ExportConfigure, functype("i", "i")},
	} {
		if !exports(m, e, p) {
			p.addf("the module does not export %s %s", e.name, e.typ)
		}
	}
	exports(m, entry{ExportInitialize, functype("", "")}, p)
	calls := k.entries()
	var names []string
	found := 0
	for _, e := range calls {
		names = append(names, e.name+" "+e.typ.String())
		if exports(m, e, p) {
			found++
		}
	}
	switch {
	case found == 0:
		p.addf("the module does not export %s, which kind %s needs", strings.Join(names, " or "), k)
	case found > 1:
		p.addf("the module exports %d of %s; one is needed", found, strings.Join(names, " or "))
	}
}

// exports says whether the module exports a function of that name; one of another
// type is a problem.
func exports(m *module.Module, want entry, p *problems) bool {
	e, ok := m.Export(want.name)
	if !ok {
		return false
	}
	if e.Kind != module.KindFunc {
		p.addf("the export %s is a %s; it must be a function", want.name, e.Kind)
	} else if t := m.FuncType(e.Index); !t.Equal(want.typ) {
		p.addf("the export %s has type %s; it must have %s", want.name, t, want.typ)
	}
	return true
}

func checkMemory(m *module.Module, manifest *Manifest, p *problems) {
	e, ok := m.Export(ExportMemory)
	switch {
	case !ok:
		p.addf("the module does not export its memory as %q", ExportMemory)
	case e.Kind != module.KindMemory:
		p.addf("the export %q is a %s; it must be the memory", ExportMemory, e.Kind)
	case m.Memory.Min > manifest.Pages:
		p.addf("the memory begins with %d pages of 64 KiB, and the manifest asks for %d", m.Memory.Min, manifest.Pages)
	}
}

func checkImports(m *module.Module, manifest *Manifest, p *problems) {
	for _, i := range m.Imports {
		if c := capabilityOf(i); c != "" && !slices.Contains(manifest.Capabilities, c) {
			p.addf("the module imports %s.%s, but its manifest does not ask for the capability %s", i.Module, i.Name, c)
		}
	}
}
