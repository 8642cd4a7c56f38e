#!/bin/sh
# Builds a policy in Rust: build.sh DIR OUT.wasm. It takes cargo where the target
# wasm32-unknown-unknown is installed (rustup target add wasm32-unknown-unknown), else
# Debian's rustc with libstd-rust-dev-wasm32 and lld-14.
set -eu
sdk=$(cd "$(dirname "$0")" && pwd)
dir=$1 out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
target=wasm32-unknown-unknown
features=-Ctarget-feature=+simd128,+bulk-memory
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
has() { [ -d "$("$1" --print sysroot 2>/dev/null)/lib/rustlib/$target/lib" ]; }
if [ -z "${RUSTC:-}" ]; then
	for RUSTC in rustc /usr/bin/rustc none; do
		has "$RUSTC" && break
	done
fi
[ "$RUSTC" != none ] || { echo "no rustc has the target $target" >&2; exit 1; }
linker=
case $("$RUSTC" --version) in *1.63*) linker=-Clinker=wasm-ld-14 ;; esac
set -- --edition 2021 --target "$target" -O -Copt-level=3 -Ccodegen-units=1 -Cpanic=abort $features
"$RUSTC" "$@" --crate-type rlib --crate-name yardmaster -Cembed-bitcode=yes "$sdk/src/lib.rs" -o "$work/libyardmaster.rlib"
cd "$dir"
"$RUSTC" "$@" --crate-type cdylib --crate-name policy -Clto -Cstrip=debuginfo $linker -Clink-arg=-zstack-size=16384 \
	--extern "yardmaster=$work/libyardmaster.rlib" src/lib.rs -o "$out"
