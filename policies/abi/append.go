package abi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// preamble is how a core module of version 1 begins.
const preamble = "\x00asm\x01\x00\x00\x00"

// ErrNoModule says that bytes are no Wasm module whose sections could be told apart.
var ErrNoModule = errors.New("not a Wasm module")

// AppendManifest returns the module with manifest, which must be a good one, as its
// only section [Section], at the end. One that was there is replaced, so that a build
// may be repeated. For toolchains that cannot write custom sections themselves.
// Errors wrap [ErrManifest] or [ErrNoModule].
func AppendManifest(wasm, manifest []byte) ([]byte, error) {
	if _, err := ParseManifest(manifest); err != nil {
		return nil, err
	}
	if len(wasm) < len(preamble) || string(wasm[:len(preamble)]) != preamble {
		return nil, fmt.Errorf("%w: it does not begin as a core module of version 1", ErrNoModule)
	}
	out := []byte(preamble)
	for at := len(preamble); at < len(wasm); {
		size, n := binary.Uvarint(wasm[at+1:])
		if n <= 0 || n > 5 || size > uint64(len(wasm)-at-1-n) {
			return nil, fmt.Errorf("%w: the section at byte %d does not end within it", ErrNoModule, at)
		}
		end := at + 1 + n + int(size)
		if wasm[at] != 0 || !named(wasm[at+1+n:end]) {
			out = append(out, wasm[at:end]...)
		}
		at = end
	}
	body := slices.Concat(binary.AppendUvarint(nil, uint64(len(Section))), []byte(Section), manifest)
	out = append(out, 0)
	out = binary.AppendUvarint(out, uint64(len(body)))
	return append(out, body...), nil
}

// named says whether a custom section is a manifest.
func named(body []byte) bool {
	size, n := binary.Uvarint(body)
	return n > 0 && size == uint64(len(Section)) && len(body)-n >= len(Section) && string(body[n:n+len(Section)]) == Section
}
