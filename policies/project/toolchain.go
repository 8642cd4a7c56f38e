package project

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/yardmaster/yardmaster/policies/bind"
)

// Lacking says what is missing on this machine to build the policy in dir, and how to
// get it, or nothing.
func Lacking(dir string, lang bind.Language) string {
	switch lang {
	case bind.C:
		return lackingClang()
	case bind.Rust:
		return lackingRust()
	case bind.AssemblyScript:
		return lackingAssemblyScript(dir)
	case bind.Go:
		if found("GO", "go") == "" {
			return "there is no go: install Go 1.24 or newer from https://go.dev/dl, or name it in GO"
		}
	}
	return ""
}

// found is the first program that there is: the one that a variable names, or one of
// the usual names.
func found(variable string, names ...string) string {
	if v := os.Getenv(variable); v != "" {
		names = []string{v}
	}
	for _, name := range names {
		command, _, _ := strings.Cut(name, " ") // CC may be "zig cc"
		if _, err := exec.LookPath(command); err == nil {
			return name
		}
	}
	return ""
}

func lackingClang() string {
	cc := strings.Fields(found("CC", "clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14"))
	if len(cc) == 0 {
		return `there is no clang: install it with its linker (apt install clang lld), or set CC="zig cc"`
	}
	ask := exec.Command(cc[0], append(cc[1:], "--target=wasm32", "-print-prog-name=wasm-ld")...) //nolint:noctx // it prints a line
	out, err := ask.Output()
	linker := strings.TrimSpace(string(out))
	if err != nil || linker == "" {
		return "" // it is no clang, and the build will tell
	}
	if _, err := exec.LookPath(linker); err != nil {
		return cc[0] + " has no wasm-ld: install the lld of its version (apt install clang lld)"
	}
	return ""
}

// wasmTarget is Rust's name of what policies are compiled for.
const wasmTarget = "wasm32-unknown-unknown"

func lackingRust() string {
	compilers := []string{"rustc", "/usr/bin/rustc"}
	if v := os.Getenv("RUSTC"); v != "" {
		compilers = []string{v}
	}
	some := false
	for _, rustc := range compilers {
		root, err := exec.Command(rustc, "--print", "sysroot").Output() //nolint:noctx // it prints a line
		if err != nil {
			continue
		}
		some = true
		if _, err := os.Stat(filepath.Join(strings.TrimSpace(string(root)), "lib/rustlib", wasmTarget, "lib")); err == nil {
			return ""
		}
	}
	if some {
		return "rustc does not know " + wasmTarget + ": run `rustup target add " + wasmTarget + "`, or apt install rustc libstd-rust-dev-wasm32 lld-14"
	}
	return "there is no rustc: install it from https://rustup.rs, then run `rustup target add " + wasmTarget + "`"
}

func lackingAssemblyScript(dir string) string {
	if os.Getenv("ASC") != "" {
		return ""
	}
	if found("", "node") == "" || found("", "npx") == "" {
		return "there is no node with npx: install Node.js 20 or newer, or name the compiler in ASC"
	}
	// npx looks in the folders above, too.
	at, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "node_modules", ".bin", "asc")); err == nil {
			return ""
		}
		above := filepath.Dir(at)
		if above == at {
			return "the AssemblyScript compiler is not installed: run `npm install` in " + dir
		}
		at = above
	}
}
