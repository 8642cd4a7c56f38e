package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/module"
)

var (
	// ErrProject says that a folder is no policy's.
	ErrProject = errors.New("not a policy's folder")
	// ErrToolchain says that the language's toolchain is missing or failed; its output
	// is in the message.
	ErrToolchain = errors.New("toolchain failed")
)

// mark is the file by which a policy's language is known.
func mark(lang bind.Language) string {
	return map[bind.Language]string{
		bind.C: "policy.c", bind.Go: "policy.go", bind.Rust: "src/lib.rs", bind.AssemblyScript: "assembly/policy.ts",
	}[lang]
}

// Language says which language a policy is written in. Errors wrap [ErrProject].
func Language(dir string) (bind.Language, error) {
	var found []bind.Language
	for _, lang := range bind.Languages() {
		if _, err := os.Stat(filepath.Join(dir, mark(lang))); err == nil {
			found = append(found, lang)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%w: %s has the sources of %d languages; there must be one of policy.c, policy.go, src/lib.rs, assembly/policy.ts", ErrProject, dir, len(found))
	}
	return found[0], nil
}

// Manifest reads a policy's manifest.json. Errors wrap [ErrProject] or
// [abi.ErrManifest].
func Manifest(dir string) (data []byte, m *abi.Manifest, err error) {
	data, err = os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrProject, err)
	}
	m, err = abi.ParseManifest(data)
	return data, m, err
}

// Bind writes a policy's bindings where they are missing or stale, and says whether it
// did.
func Bind(dir string) (changed bool, err error) {
	lang, err := Language(dir)
	if err != nil {
		return false, err
	}
	_, m, err := Manifest(dir)
	if err != nil {
		return false, err
	}
	name, code, err := bind.Generate(m, lang)
	if err != nil {
		return false, err
	}
	path := filepath.Join(dir, name)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, code) {
		return false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, os.WriteFile(path, code, 0o644) //nolint:gosec // a source, like its neighbours
}

// Options shape a build.
type Options struct {
	// SDK is the folder of the language's SDK; empty is "sdk" in the policy's folder,
	// where `yardmaster policy new` puts it.
	SDK string
	// Env is added to the environment of the build script.
	Env []string
}

// Build compiles a policy and returns the module, with its manifest. ctx bounds the
// toolchain. Errors wrap [ErrProject], [ErrToolchain], [abi.ErrManifest] or
// [abi.ErrContract], or are the decoder's.
func Build(ctx context.Context, dir string, o Options) ([]byte, error) {
	if _, err := Bind(dir); err != nil {
		return nil, err
	}
	manifest, _, err := Manifest(dir)
	if err != nil {
		return nil, err
	}
	wasm, err := compile(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	if wasm, err = abi.AppendManifest(wasm, manifest); err != nil {
		return nil, err
	}
	m, err := module.Decode(wasm, module.Options{Imports: abi.Imports()})
	if err != nil {
		return nil, err
	}
	_, err = abi.Check(m)
	return wasm, err
}

// waitDelay is how long a script that was ended is waited for: what it has started may
// hold its output open.
const waitDelay = 5 * time.Second

// compile runs the SDK's script.
func compile(ctx context.Context, dir string, o Options) ([]byte, error) {
	sdk := o.SDK
	if sdk == "" {
		sdk = filepath.Join(dir, "sdk")
	}
	script, err := filepath.Abs(filepath.Join(sdk, "build.sh"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(script); err != nil {
		return nil, fmt.Errorf("%w: it has no SDK: %w", ErrProject, err)
	}
	work, err := os.MkdirTemp("", "policy")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(work) }() // in the system's temporary folder
	out := filepath.Join(work, "policy.wasm")
	cmd := exec.CommandContext(ctx, "sh", script, dir, out)
	cmd.Env = slices.Concat(os.Environ(), o.Env)
	cmd.WaitDelay = waitDelay
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %w\n%s", ErrToolchain, err, bytes.TrimSpace(text))
	}
	return os.ReadFile(out)
}
