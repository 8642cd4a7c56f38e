package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Suites that run from their source are part of the program, so that it runs
// from anywhere. The Go suite is built from its folder: a module cannot be
// embedded.
//
//go:embed python node
var sources embed.FS

// installTime bounds an installation. The Go client alone takes minutes to
// compile where nothing of it is in the build cache.
const installTime = 15 * time.Minute

func preparePython(ctx context.Context, o *options, work string) (command, env []string, client string, err error) {
	python, err := tool("python3")
	if err != nil {
		return nil, nil, "", err
	}
	pins, err := sources.ReadFile("python/requirements.txt")
	if err != nil {
		return nil, nil, "", err
	}
	// A folder rather than a virtual environment: that cannot be moved, and needs
	// a package of its own on some systems.
	site, err := installed(o.cache, "python", pins, func(into string) error {
		list := filepath.Join(into, "requirements.txt")
		if err := os.WriteFile(list, pins, 0o600); err != nil {
			return err
		}
		return install(ctx, into, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", into, "--requirement", list)
	})
	if err != nil {
		return nil, nil, "", err
	}
	if err := unpack("python", work); err != nil {
		return nil, nil, "", err
	}
	env = []string{"PYTHONPATH=" + site, "PYTHONDONTWRITEBYTECODE=", "PYTHONNOUSERSITE=1"}
	return []string{python, "-u", "suite.py"}, env, "python openai " + pinned(pins, `(?m)^openai==(\S+)`), nil
}

func prepareNode(ctx context.Context, o *options, work string) (command, env []string, client string, err error) {
	node, err := tool("node")
	if err != nil {
		return nil, nil, "", err
	}
	npm, err := tool("npm")
	if err != nil {
		return nil, nil, "", err
	}
	lock, err := sources.ReadFile("node/package-lock.json")
	if err != nil {
		return nil, nil, "", err
	}
	modules, err := installed(o.cache, "node", lock, func(into string) error {
		if err := unpack("node", into); err != nil {
			return err
		}
		return install(ctx, into, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error")
	})
	if err != nil {
		return nil, nil, "", err
	}
	if err := unpack("node", work); err != nil {
		return nil, nil, "", err
	}
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(work, "node_modules")); err != nil {
		return nil, nil, "", err
	}
	return []string{node, "suite.mjs"}, nil, "node openai " + pinned(lock, `"node_modules/openai": \{\s*"version": "([^"]+)"`), nil
}

func prepareGo(ctx context.Context, _ *options, work string) (command, env []string, client string, err error) {
	golang, err := tool("go")
	if err != nil {
		return nil, nil, "", err
	}
	where, err := output(ctx, ".", golang, "list", "-f", "{{.Dir}}", "github.com/yardmaster/yardmaster/cmd/internal/clients")
	if err != nil {
		return nil, nil, "", fmt.Errorf("the Go suite is built from its source, and that is not here: %w", err)
	}
	module := filepath.Join(strings.TrimSpace(where), "go")
	binary := filepath.Join(work, "suite")
	if err := install(ctx, module, golang, "build", "-o", binary, "."); err != nil {
		return nil, nil, "", err
	}
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return nil, nil, "", err
	}
	return []string{binary}, nil, "go openai " + pinned(mod, `openai-go/v3 v(\S+)`), nil
}

// tool finds a program of the toolchain.
func tool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return filepath.Abs(path)
}

// installed is the folder of an installation that its pins name. A missing one
// is made beside it and moved into place, so that there is never half of one.
func installed(cache, name string, pins []byte, fill func(into string) error) (string, error) {
	sum := sha256.Sum256(pins)
	final := filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(cache, name+"-part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh) //nolint:errcheck // gone when moved
	if err := fill(fresh); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, final); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, there := os.Stat(final); there != nil { // another run may have been first
			return "", err
		}
	}
	return final, nil
}

// unpack writes a suite's source.
func unpack(suite, into string) error {
	inside, err := fs.Sub(sources, suite)
	if err != nil {
		return err
	}
	return fs.WalkDir(inside, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(inside, name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(into, name), text, 0o600)
	})
}

// unreachable is what package managers say when the network is not there.
var unreachable = regexp.MustCompile(`(?i)ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|network is unreachable|` +
	`connection refused|no such host|name resolution|i/o timeout|timed out|Failed to establish a new connection|No module named pip|server misbehaving`)

// install runs a package manager.
func install(ctx context.Context, dir, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	_, err := output(ctx, dir, name, args...)
	if err != nil && (ctx.Err() != nil || unreachable.MatchString(err.Error())) {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}

// output runs a command; its error holds the end of what it said.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &said
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		text := bytes.TrimSpace(append(said.Bytes(), out.Bytes()...))
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, text[max(0, len(text)-1500):])
	}
	return out.String(), nil
}

// pinned finds the client's version among its pins.
func pinned(pins []byte, pattern string) string {
	if m := regexp.MustCompile(pattern).FindSubmatch(pins); m != nil {
		return string(m[1])
	}
	return "of unknown version"
}
