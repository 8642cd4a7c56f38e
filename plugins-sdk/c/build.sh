#!/bin/sh
# Builds a policy in C: build.sh DIR OUT.wasm. DIR holds policy.c, policy.gen.h and
# manifest.json. CC names a compiler that knows wasm32 (clang with lld, or "zig cc"; several words may be).
set -eu
sdk=$(cd "$(dirname "$0")" && pwd)
dir=$1 out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
if [ -z "${CC:-}" ]; then
	for CC in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 none; do
		command -v "$CC" >/dev/null && break
	done
fi
cd "$dir"
exec $CC --target=wasm32 -std=c11 -O3 -msimd128 -mbulk-memory -ffreestanding -nostdlib -Wall -Wextra -Werror \
	-I "$sdk" -I . -Wl,--no-entry -Wl,-z,stack-size=8192 -Wl,--strip-debug policy.c -o "$out"
