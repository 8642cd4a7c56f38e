#!/bin/sh
# Builds policy.wasm with the language's own toolchain. `yardmaster policy build` does
# the same, brings the bindings up to date first, and adds the manifest.
set -eu
cd "$(dirname "$0")"
exec sh sdk/build.sh . policy.wasm
