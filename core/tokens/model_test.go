package tokens

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// smolLM2 is the vocabulary of the test model. It skips the test, saying so,
// when the model is not there.
func smolLM2(t testing.TB) Vocab {
	t.Helper()
	v, err := loadSmolLM2()
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("no test model: set YARDMASTER_TEST_MODEL or put it into the cache (%v)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var loadSmolLM2 = sync.OnceValues(func() (Vocab, error) {
	const name = "SmolLM2-135M-Instruct.Q4_1.gguf"
	path := os.Getenv("YARDMASTER_TEST_MODEL")
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return Vocab{}, errors.Join(os.ErrNotExist, err)
		}
		path = filepath.Join(cache, "yardmaster", "models", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return Vocab{}, err
	}
	defer func() { _ = f.Close() }()
	kv, err := readMetadata(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return Vocab{}, fmt.Errorf("%s: %w", path, err)
	}
	v := Vocab{
		Pre: kv["tokenizer.ggml.pre"].(string), ChatTemplate: kv["tokenizer.chat_template"].(string),
		BOS: int32(kv["tokenizer.ggml.bos_token_id"].(uint64)), EOS: int32(kv["tokenizer.ggml.eos_token_id"].(uint64)),
	}
	for _, s := range kv["tokenizer.ggml.tokens"].([]any) {
		v.Tokens = append(v.Tokens, s.(string))
	}
	for _, k := range kv["tokenizer.ggml.token_type"].([]any) {
		v.Kinds = append(v.Kinds, Kind(k.(uint64)))
	}
	for _, s := range kv["tokenizer.ggml.merges"].([]any) {
		v.Merges = append(v.Merges, s.(string))
	}
	return v, nil
})

// readMetadata reads the key-value part of a trusted GGUF file. It is the
// tests' own: core must not import gpu, where the real reader is.
func readMetadata(r io.Reader) (map[string]any, error) {
	var head struct {
		Magic, Version uint32
		Tensors, Keys  uint64
	}
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return nil, err
	}
	if head.Magic != 0x46554747 {
		return nil, errors.New("not GGUF")
	}
	kv := map[string]any{}
	for range head.Keys {
		key, err := readString(r)
		if err != nil {
			return nil, err
		}
		var kind uint32
		if err := binary.Read(r, binary.LittleEndian, &kind); err != nil {
			return nil, err
		}
		if kv[key], err = readValue(r, kind); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return kv, nil
}

func readString(r io.Reader) (string, error) {
	var n uint64
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return "", err
	}
	var b strings.Builder
	_, err := io.CopyN(&b, r, int64(n))
	return b.String(), err
}

func readValue(r io.Reader, kind uint32) (any, error) {
	switch kind {
	case 8:
		return readString(r)
	case 9:
		var head struct {
			Kind uint32
			N    uint64
		}
		if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
			return nil, err
		}
		list := make([]any, 0, 1024)
		for range head.N {
			v, err := readValue(r, head.Kind)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	size, ok := map[uint32]int{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[kind]
	if !ok {
		return nil, fmt.Errorf("value type %d", kind)
	}
	var b [8]byte
	_, err := io.ReadFull(r, b[:size])
	return binary.LittleEndian.Uint64(b[:]), err
}
