package assemble

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// workshop is where a process checks policies and compiles them.
type workshop struct {
	checks *vet.Pipeline
	cache  string // folder of compiled code
	own    bool   // the folder is thrown away at the end
}

// openWorkshop makes the folder of compiled code, below dataDir where there is one,
// and reads the trusted keys.
func openWorkshop(p Process, c config.Policy, dataDir string) (*workshop, error) {
	w := &workshop{cache: c.CacheDir}
	var err error
	switch {
	case w.cache != "":
		err = os.MkdirAll(w.cache, 0o700)
	case dataDir != "":
		w.cache = filepath.Join(dataDir, "policies", "compiled")
		err = os.MkdirAll(w.cache, 0o700)
	default:
		w.own = true
		w.cache, err = os.MkdirTemp("", "yardmaster-policies-")
	}
	if err != nil {
		return nil, fmt.Errorf("policy.cache-dir: %w", err)
	}
	settings := vet.Config{AllowUnsigned: c.AllowUnsigned, Cache: w.cache, Command: p.PolicyChild}
	for _, file := range c.TrustedKeys {
		key, err := trustedKey(file)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("policy.trusted-key: %w", err), w.close())
		}
		settings.Trusted = append(settings.Trusted, key)
	}
	if w.checks, err = vet.New(settings); err != nil {
		return nil, errors.Join(fmt.Errorf("policy: %w", err), w.close())
	}
	return w, nil
}

// trustedKey reads a public key; it is called by its file's name.
func trustedKey(file string) (vet.Key, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return vet.Key{}, err
	}
	public, err := vet.ParsePublicKey(text)
	if err != nil {
		return vet.Key{}, fmt.Errorf("%s: %w", file, err)
	}
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	return vet.Key{Name: name, Public: public}, nil
}

// close removes what is not to be kept.
func (w *workshop) close() error {
	if w == nil || !w.own {
		return nil
	}
	return os.RemoveAll(w.cache)
}
