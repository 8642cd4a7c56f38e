package rollout

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// ErrModule means that a module cannot be given another name.
var ErrModule = errors.New("rollout: not a policy's module")

// renamed is a policy under another name, with a number for its version, filled up to a
// size with what nothing reads. Its types have one more, of the number, so that no cache
// has its code: it keys code by what is compiled, without manifests.
func renamed(wasm []byte, name string, number, size int) ([]byte, error) {
	const header = 8
	if len(wasm) < header {
		return nil, ErrModule
	}
	out := append([]byte{}, wasm[:header]...)
	var manifest map[string]any
	for rest := wasm[header:]; len(rest) > 0; {
		length, n := binary.Uvarint(rest[1:])
		end := 1 + n + int(length)
		if n <= 0 || end > len(rest) {
			return nil, ErrModule
		}
		text, ours := custom(rest[0], rest[1+n:end])
		if !ours {
			out = append(out, numbered(rest[0], rest[1+n:end], number)...)
		} else if err := json.Unmarshal(text, &manifest); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrModule, err)
		}
		rest = rest[end:]
	}
	if manifest == nil {
		return nil, ErrModule
	}
	manifest["name"], manifest["version"] = name, strconv.Itoa(number)
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	if out, err = abi.AppendManifest(out, text); err != nil {
		return nil, err
	}
	const frame = 16 // of a section: its number, length and name
	if missing := size - len(out) - frame; missing > 0 {
		pad := append([]byte{3, 'p', 'a', 'd'}, make([]byte, missing)...)
		out = append(binary.AppendUvarint(append(out, 0), uint64(len(pad))), pad...)
	}
	return out, nil
}

// numbered is a section with its frame; that of types has another one, whose parameters
// are the bits of the number.
func numbered(id byte, payload []byte, number int) []byte {
	const sectionTypes, function, i32, i64, bits = 1, 0x60, 0x7f, 0x7e, 16
	if count, n := binary.Uvarint(payload); id == sectionTypes && n > 0 {
		payload = append(binary.AppendUvarint(nil, count+1), payload[n:]...)
		payload = append(payload, function, bits)
		for bit := range bits {
			payload = append(payload, byte(i32-(number>>bit)&(i32-i64)))
		}
		payload = append(payload, 0)
	}
	return append(binary.AppendUvarint([]byte{id}, uint64(len(payload))), payload...)
}

// custom is the text of a section that is the manifest.
func custom(id byte, payload []byte) (text []byte, ours bool) {
	length, n := binary.Uvarint(payload)
	if id != 0 || n <= 0 || int(length) > len(payload)-n {
		return nil, false
	}
	return payload[n+int(length):], string(payload[n:n+int(length)]) == abi.Section
}
