#!/bin/sh
# Builds a policy in AssemblyScript: build.sh DIR OUT.wasm. ASC names the compiler of
# npm's package assemblyscript; without it the project's own is taken. The module has
# no manifest yet: `yardmaster policy build` appends it.
set -eu
sdk=$(cd "$(dirname "$0")" && pwd)
dir=$1 out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/@yardmaster"
ln -s "$sdk" "$work/@yardmaster/policy"
cd "$dir"
${ASC:-npx --no-install asc} assembly/index.ts --path "$work" --runtime stub -O3 --noAssert --enable simd \
	--use abort= --outFile "$out"
