// Package sdk holds the SDKs' and templates' files, for package templates to copy. It
// is here since files are embedded from below a package only.
package sdk

import "embed"

// Files are the SDKs by language, the projects under templates, the sources of the
// examples, and SPEC.md.
//
//go:embed SPEC.md
//go:embed c/yardmaster.h c/build.sh
//go:embed go/*.go go/build.sh
//go:embed rust/Cargo.toml rust/build.sh rust/src
//go:embed assemblyscript/package.json assemblyscript/build.sh assemblyscript/assembly
//go:embed templates/build.sh templates/README.md.txt templates/gitignore.txt
//go:embed templates/c/*.json templates/c/*.c templates/c/*.h
//go:embed templates/go/*.json templates/go/*.go templates/go/*.txt
//go:embed templates/rust/*.json templates/rust/Cargo.toml templates/rust/src
//go:embed templates/assemblyscript/*.json templates/assemblyscript/assembly
//go:embed examples/*/golden.json examples/*/*/manifest.json
//go:embed examples/*/c/policy.c examples/*/c/policy.gen.h examples/*/go/*.go
//go:embed examples/*/rust/src examples/*/assemblyscript/assembly
var Files embed.FS
