package abi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

const leastLoaded = `{"abi":"1.0","kind":"router","name":"least-loaded","version":"1","columns":[{"name":"requests"}]}`

// policy is a good router; edit spoils it.
type policy struct {
	manifest []string
	imports  []string
	exports  map[string]string // name to type
	memory   int
	shown    bool
}

func build(edit func(*policy)) []byte {
	p := policy{
		manifest: []string{leastLoaded}, memory: 1, shown: true,
		exports: map[string]string{"ym_abi_1": "->", "ym_layout": "-> i32", "ym_configure": "i32 -> i32", "ym_score": "i32 -> i32"},
	}
	edit(&p)
	m := wattest.New()
	for _, name := range p.imports {
		for _, i := range abi.Imports() {
			if i.Name == name {
				m.Import(i.Module, i.Name, strings.NewReplacer("(", "", ")", "", ",", "").Replace(i.Type.String()))
			}
		}
	}
	m.Memory(p.memory, -1)
	if p.shown {
		m.Export("memory", module.KindMemory, 0)
	}
	for name, typ := range p.exports {
		_, results, _ := strings.Cut(typ, "-> ")
		code := ""
		if results != "" {
			code = results + ".const 0"
		}
		m.Export(name, module.KindFunc, m.Func(typ, "", code))
	}
	for _, text := range p.manifest {
		m.Before(255, wattest.Custom(abi.Section, text)...)
	}
	return m.Bytes()
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name string
		edit func(*policy)
		want string // empty for a good policy
	}{
		{"good", func(*policy) {}, ""},
		{"good with initialize", func(p *policy) { p.exports["_initialize"] = "->" }, ""},
		{"good with stubs of WASI", func(p *policy) { p.imports = []string{"fd_write", "proc_exit"} }, ""},
		{"no manifest", func(p *policy) { p.manifest = nil }, `no custom section "yardmaster.manifest"`},
		{"two manifests", func(p *policy) { p.manifest = append(p.manifest, leastLoaded) }, "2 custom sections"},
		{"unknown kind", func(p *policy) { p.manifest[0] = strings.Replace(leastLoaded, "router", "oracle", 1) }, `kind "oracle" is unknown`},
		{"no guard", func(p *policy) { delete(p.exports, "ym_abi_1") }, "does not export ym_abi_1 () -> ()"},
		{"no layout", func(p *policy) { delete(p.exports, "ym_layout") }, "does not export ym_layout () -> i32"},
		{"no call", func(p *policy) { delete(p.exports, "ym_score") }, "ym_score (i32) -> i32 or ym_route (i32) -> i64, which kind router needs"},
		{"two calls", func(p *policy) { p.exports["ym_route"] = "i32 -> i64" }, "exports 2 of"},
		{"call of another type", func(p *policy) { p.exports["ym_score"] = "i64 -> i32" }, "ym_score has type (i64) -> i32; it must have (i32) -> i32"},
		{"memory not shown", func(p *policy) { p.shown = false }, `does not export its memory as "memory"`},
		{"memory larger than asked for", func(p *policy) { p.memory = 65 }, "begins with 65 pages of 64 KiB, and the manifest asks for 64"},
		{"import without a capability", func(p *policy) { p.imports = []string{"kv_get"} }, "imports ym1.kv_get, but its manifest does not ask for the capability state"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := module.Decode(build(tt.edit), module.Options{Imports: abi.Imports()})
			if err != nil {
				t.Fatal(err)
			}
			got, err := abi.Check(m)
			if tt.want == "" {
				if err != nil || got.Name != "least-loaded" {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if !errors.Is(err, abi.ErrContract) && !errors.Is(err, abi.ErrManifest) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// A WASI call that a policy must not have is refused by the decoder, by name.
func TestFilesAreNotOffered(t *testing.T) {
	m := wattest.New()
	m.Import("wasi_snapshot_preview1", "path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32 -> i32")
	_, err := module.Decode(m.Bytes(), module.Options{Imports: abi.Imports()})
	if !errors.Is(err, module.ErrImport) || !strings.Contains(err.Error(), `"wasi_snapshot_preview1"."path_open" is not offered`) {
		t.Errorf("got %v", err)
	}
}
