#!/bin/sh
# Builds a policy in Go: build.sh DIR OUT.wasm. The module has no manifest yet:
# `yardmaster policy build` appends it.
set -eu
dir=$1 out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$dir"
GOOS=wasip1 GOARCH=wasm CGO_ENABLED=0 exec "${GO:-go}" build -trimpath -buildvcs=false -ldflags='-s -w' -buildmode=c-shared -o "$out" .
