package bind_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/bind"
)

var rewrite = flag.Bool("rewrite", false, "write the bindings of the tree's policies anew")

// marks say by which file a policy's language is known.
var marks = map[bind.Language]string{
	bind.C: "policy.c", bind.Go: "policy.go", bind.Rust: "src/lib.rs", bind.AssemblyScript: "assembly/policy.ts",
}

// The bindings that stand in the tree are those of their manifests.
func TestBindingsAreCurrent(t *testing.T) {
	found := 0
	for _, root := range []string{"../../plugins-sdk", "../../examples", "../builtin", "../abi/testdata/conformance"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "manifest.json" {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			m, err := abi.ParseManifest(data)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return nil
			}
			for lang, mark := range marks {
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), mark)); err == nil {
					found++
					compare(t, filepath.Dir(path), m, lang)
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if found < 16 {
		t.Errorf("only %d policies found", found)
	}
}

func compare(t *testing.T, dir string, m *abi.Manifest, lang bind.Language) {
	name, code, err := bind.Generate(m, lang)
	if err != nil {
		t.Errorf("%s: %v", dir, err)
		return
	}
	path := filepath.Join(dir, name)
	if *rewrite {
		if err := os.WriteFile(path, code, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(string(code), string(have)); diff != "" {
		t.Errorf("%s is stale (go test ./policies/bind -rewrite); -want +have:\n%s", path, diff)
	}
}

func TestGenerateRefuses(t *testing.T) {
	m, err := abi.ParseManifest([]byte(`{"abi":"1.0","kind":"router","name":"x","version":"1",
		"params":[{"name":"a_b","type":"float","default":1},{"name":"a-b","type":"float","default":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := bind.Generate(m, "cobol"); !errors.Is(err, bind.ErrLanguage) {
		t.Errorf("got %v", err)
	}
	for _, lang := range bind.Languages() {
		if _, _, err := bind.Generate(m, lang); !errors.Is(err, bind.ErrNames) {
			t.Errorf("%s: got %v", lang, err)
		}
	}
}
