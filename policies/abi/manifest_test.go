package abi_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/yardmaster/yardmaster/policies/abi"
)

var rewrite = flag.Bool("rewrite", false, "write what is into testdata")

func say(m *abi.Manifest, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	out := fmt.Sprintf("ok fuel %d pages %d", m.Fuel, m.Pages)
	if m.Fail != "" {
		out += " fail " + m.Fail
	}
	return out + "\n"
}

func TestManifests(t *testing.T) {
	paths, err := filepath.Glob("testdata/manifest/*.txtar")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			m, err := abi.ParseManifest(archive.Files[0].Data)
			if err != nil && !errors.Is(err, abi.ErrManifest) {
				t.Errorf("%v does not wrap ErrManifest", err)
			}
			got := say(m, err)
			if *rewrite {
				archive.Files[1].Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(archive.Files[1].Data), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestManifestIsBounded(t *testing.T) {
	big := `{"abi":"1.0","kind":"router","name":"x","version":"` + strings.Repeat("1", abi.MostManifest) + `"}`
	if _, err := abi.ParseManifest([]byte(big)); !errors.Is(err, abi.ErrManifest) || !strings.Contains(err.Error(), "16384 are allowed") {
		t.Errorf("got %v", err)
	}
}

func FuzzManifest(f *testing.F) {
	paths, _ := filepath.Glob("testdata/manifest/*.txtar")
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := abi.ParseManifest(data)
		if err != nil {
			return
		}
		if m.Fuel <= 0 || m.Pages == 0 || m.Pages > abi.MostPages || len(m.Params) > abi.MostParams {
			t.Errorf("accepted %+v", m)
		}
		for _, p := range m.Params {
			if err := p.Accepts(p.Default); err != nil {
				t.Error(err)
			}
		}
	})
}
