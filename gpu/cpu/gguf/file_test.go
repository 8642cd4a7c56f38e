package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf/gguftest"
)

func read(b []byte) (*gguf.File, error) { return gguf.Read(bytes.NewReader(b), int64(len(b))) }

func mustRead(t *testing.T, b []byte) *gguf.File {
	t.Helper()
	f, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMetadata(t *testing.T) {
	w := gguftest.Writer{Version: 2}
	w.Key("u8", uint8(200))
	w.Key("i64", int64(-5))
	w.Key("huge", uint64(math.MaxUint64))
	w.Key("f32", float32(1.5))
	w.Key("f64", 2.5)
	w.Key("yes", true)
	w.Key("text", "grüß")
	w.Key("words", []string{"a", "", "c c"})
	w.Key("ints", []int32{1, -2, 3})
	w.Key("floats", []float32{0.5, -1})
	w.Key("none", []string{})
	f := mustRead(t, w.Bytes())

	type answer struct {
		V  any
		OK bool
	}
	ask := func(v any, ok bool) answer { return answer{v, ok} }
	intAt := func(k string) answer { v, ok := f.Int(k); return ask(v, ok) }
	floatAt := func(k string) answer { v, ok := f.Float(k); return ask(v, ok) }
	stringAt := func(k string) answer { v, ok := f.String(k); return ask(v, ok) }
	boolAt := func(k string) answer { v, ok := f.Bool(k); return ask(v, ok) }
	stringsAt := func(k string) answer { v, ok := f.Strings(k); return ask(v, ok) }
	intsAt := func(k string) answer { v, ok := f.Ints(k); return ask(v, ok) }
	floatsAt := func(k string) answer { v, ok := f.Floats(k); return ask(v, ok) }
	tests := []struct {
		name      string
		got, want answer
	}{
		{"uint8", intAt("u8"), ask(int64(200), true)},
		{"int64", intAt("i64"), ask(int64(-5), true)},
		{"uint64 too large for Int", intAt("huge"), ask(int64(-1), false)},
		{"uint64 as float", floatAt("huge"), ask(float64(math.MaxUint64), true)},
		{"float32", floatAt("f32"), ask(1.5, true)},
		{"float64", floatAt("f64"), ask(2.5, true)},
		{"integer as float", floatAt("u8"), ask(200.0, true)},
		{"float is no integer", intAt("f32"), ask(int64(0), false)},
		{"bool", boolAt("yes"), ask(true, true)},
		{"string", stringAt("text"), ask("grüß", true)},
		{"string of another kind", stringAt("yes"), ask("", false)},
		{"strings", stringsAt("words"), ask([]string{"a", "", "c c"}, true)},
		{"no strings", stringsAt("none"), ask([]string{}, true)},
		{"ints", intsAt("ints"), ask([]int64{1, -2, 3}, true)},
		{"floats", floatsAt("floats"), ask([]float64{0.5, -1}, true)},
		{"ints as floats", floatsAt("ints"), ask([]float64{1, -2, 3}, true)},
		{"floats are no ints", intsAt("floats"), ask([]int64(nil), false)},
		{"absent", intAt("absent"), ask(int64(0), false)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := slices.Collect(f.Keys()); len(got) != 11 || got[0] != "u8" || f.Version() != 2 || !f.Has("none") {
		t.Errorf("keys %v, version %d", got, f.Version())
	}
}

func TestTensors(t *testing.T) {
	var w gguftest.Writer
	a, b := gguftest.Encode(gguf.F32, []float32{1, 2, 3}), gguftest.Encode(gguf.F16, []float32{0.5, -8})
	w.Tensor("a", gguf.F32, []int{3}, a)
	w.Tensor("b", gguf.F16, []int{1, 2}, b)
	f := mustRead(t, w.Bytes())
	tb, ok := f.Tensor("b")
	if !ok || tb.Rows() != 2 || tb.Elements() != 2 || tb.Size != 4 || tb.Offset%32 != 0 {
		t.Fatalf("b = %+v, %v", tb, ok)
	}
	got := make([]byte, 2)
	if err := f.ReadTensor(tb, got, 2); err != nil || !bytes.Equal(got, b[2:]) {
		t.Errorf("second row = %v, %v; want %v", got, err, b[2:])
	}
	if err := f.ReadTensor(tb, got, 3); !errors.Is(err, gguf.ErrFormat) {
		t.Errorf("read beyond the tensor: %v", err)
	}
	if _, ok := f.Tensor("c"); ok {
		t.Error("found a tensor that is not there")
	}
}

// TestDequantize compares every type with a decoder written element by element
// from the format's description.
func TestDequantize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := func(b []byte) float64 { return float64(f16.Float(binary.LittleEndian.Uint16(b))) }
	element := map[gguf.Type]func(b []byte, i int) float64{
		gguf.F32: func(b []byte, _ int) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) },
		gguf.F16: func(b []byte, _ int) float64 { return h(b) },
		gguf.BF16: func(b []byte, _ int) float64 {
			return float64(math.Float32frombits(uint32(b[1])<<24 | uint32(b[0])<<16))
		},
		gguf.Q40: func(b []byte, i int) float64 {
			return h(b) * float64(int(b[2+i%16]>>(i/16*4)&15)-8)
		},
		gguf.Q41: func(b []byte, i int) float64 {
			return h(b)*float64(b[4+i%16]>>(i/16*4)&15) + h(b[2:])
		},
		gguf.Q80: func(b []byte, i int) float64 { return h(b) * float64(int8(b[2+i])) },
		gguf.Q4K: func(b []byte, i int) float64 {
			j, s := i/32, b[4:16]
			var sc, m byte
			if j < 4 {
				sc, m = s[j]&63, s[j+4]&63
			} else {
				sc, m = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
			}
			q := b[16+j/2*32+i%32] >> (j % 2 * 4) & 15
			return h(b)*float64(sc)*float64(q) - h(b[2:])*float64(m)
		},
		gguf.Q6K: func(b []byte, i int) float64 {
			half, in := i/128, i%128
			ql, qh, sc := b[half*64:], b[128+half*32:], b[192+half*8:]
			l := in % 32
			var q byte
			switch in / 32 {
			case 0:
				q = ql[l]&15 | qh[l]&3<<4
			case 1:
				q = ql[l+32]&15 | qh[l]>>2&3<<4
			case 2:
				q = ql[l]>>4 | qh[l]>>4&3<<4
			default:
				q = ql[l+32]>>4 | qh[l]>>6<<4
			}
			return h(b[208:]) * float64(int8(sc[l/16+in/32*2])) * float64(int(q)-32)
		},
	}
	for typ, want := range element {
		t.Run(typ.String(), func(t *testing.T) {
			per, size := typ.Block()
			const blocks = 7
			src := gguftest.Random(rng, typ, blocks*per, 1)
			got := make([]float32, blocks*per)
			gguf.Dequantize(typ, got, src)
			var sum float64
			for i, x := range got {
				w := want(src[i/per*size:][:size], i%per)
				if math.Abs(float64(x)-w) > 1e-5*max(1, math.Abs(w)) {
					t.Fatalf("element %d = %v, want %v", i, x, w)
				}
				sum += w * w
			}
			if per > 1 {
				if sd := math.Sqrt(sum / float64(len(got))); sd < 0.4 || sd > 2 {
					t.Errorf("standard deviation of random weights %v, want about 1", sd)
				}
			}
		})
	}
}

func TestHostile(t *testing.T) {
	le := binary.LittleEndian
	u64 := func(n uint64) string { return string(le.AppendUint64(nil, n)) }
	u32 := func(n uint32) string { return string(le.AppendUint32(nil, n)) }
	pre := func(tensors, keys uint64) string { return "GGUF" + u32(3) + u64(tensors) + u64(keys) }
	str := func(s string) string { return u64(uint64(len(s))) + s }
	tensor := func(name string, typ uint32, offset uint64, shape ...uint64) string {
		var dims []byte
		for _, d := range shape {
			dims = le.AppendUint64(dims, d)
		}
		return str(name) + u32(uint32(len(shape))) + string(dims) + u32(typ) + u64(offset)
	}
	pad := strings.Repeat("\x00", 256)
	tests := []struct {
		name, file, want string
		offset           int64
		kind             error
	}{
		{"empty", "", "file ends after 0", 0, gguf.ErrFormat},
		{"magic", "GGML" + pad, "magic", 0, gguf.ErrFormat},
		{"version 1", "GGUF" + u32(1) + pad, "version 1", 4, gguf.ErrUnsupported},
		{"big-endian", "GGUF\x00\x00\x00\x03" + pad, "big-endian", 4, gguf.ErrUnsupported},
		{"tensor count", pre(1<<40, 0) + pad, "1099511627776 tensors", 8, gguf.ErrFormat},
		{"key count", pre(0, 1<<63) + pad, "metadata keys", 16, gguf.ErrFormat},
		{"key length", pre(0, 1) + u64(1<<62) + pad, "metadata key of", 24, gguf.ErrFormat},
		{"string length", pre(0, 1) + str("k") + u32(8) + u64(math.MaxUint64), "string of k of 18446744073709551615 bytes", 45, gguf.ErrFormat},
		{"unknown value type", pre(0, 1) + str("k") + u32(13) + pad, "unknown type 13", 33, gguf.ErrFormat},
		{"array count", pre(0, 1) + str("k") + u32(9) + u32(4) + u64(1<<60) + pad, "more than the file can hold", 41, gguf.ErrFormat},
		{"string array count", pre(0, 1) + str("k") + u32(9) + u32(8) + u64(33) + pad, "more than the file can hold", 41, gguf.ErrFormat},
		{"nested array", pre(0, 1) + str("k") + u32(9) + u32(9) + u64(1) + pad, "array of arrays", 37, gguf.ErrUnsupported},
		{"array of unknown", pre(0, 1) + str("k") + u32(9) + u32(99) + u64(1) + pad, "unknown element type 99", 37, gguf.ErrFormat},
		{"boolean", pre(0, 1) + str("k") + u32(7) + "\x02" + pad, "boolean 2", 37, gguf.ErrFormat},
		{"key twice", pre(0, 2) + str("k") + u32(7) + "\x01" + str("k") + u32(7) + "\x01", "stands twice", 38, gguf.ErrFormat},
		{"alignment", pre(0, 1) + str("general.alignment") + u32(4) + u32(24) + pad, "general.alignment", 53, gguf.ErrFormat},
		{"no dimensions", pre(1, 0) + tensor("t", 0, 0) + pad, "0 dimensions", 33, gguf.ErrFormat},
		{"five dimensions", pre(1, 0) + tensor("t", 0, 0, 1, 1, 1, 1, 1) + pad, "5 dimensions", 33, gguf.ErrFormat},
		{"empty dimension", pre(1, 0) + tensor("t", 0, 0, 4, 0) + pad, "dimension of 0", 45, gguf.ErrFormat},
		{"overflowing shape", pre(1, 0) + tensor("t", 0, 0, 1<<32, 1<<32) + pad, "dimension of 4294967296 after", 45, gguf.ErrFormat},
		{"unsupported type", pre(1, 0) + tensor("t", 13, 0, 256) + pad, "type Q5_K", 45, gguf.ErrUnsupported},
		{"unknown type", pre(1, 0) + tensor("t", 999, 0, 256) + pad, "type 999", 45, gguf.ErrUnsupported},
		{"ragged rows", pre(1, 0) + tensor("t", 3, 0, 33) + pad, "blocks of 32", 45, gguf.ErrFormat},
		{"tensor larger than the file", pre(1, 0) + tensor("t", 0, 0, 1000) + pad, "takes 4000 bytes", 49, gguf.ErrFormat},
		{"offset beyond the file", pre(1, 0) + tensor("t", 0, math.MaxUint64, 4) + pad, "takes 16 bytes at", 49, gguf.ErrFormat},
		{"tensor past the end", pre(1, 0) + tensor("t", 0, 256, 40) + pad, "runs past the end", 320, gguf.ErrFormat},
		{"misaligned tensor", pre(1, 0) + tensor("t", 0, 8, 4) + pad, "multiple of the alignment", 72, gguf.ErrFormat},
		{"tensor twice", pre(2, 0) + tensor("t", 0, 0, 4) + tensor("t", 0, 32, 4) + pad, "stands twice", 57, gguf.ErrFormat},
		{"overlap", pre(2, 0) + tensor("t", 0, 0, 9) + tensor("u", 0, 32, 4) + pad, "overlap", 128, gguf.ErrFormat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := read([]byte(tt.file))
			var e *gguf.Error
			if !errors.As(err, &e) || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) || e.Offset != tt.offset {
				t.Errorf("error %v, want %v with %q at %d", err, tt.kind, tt.want, tt.offset)
			}
		})
	}
}

// TestBoundedMemory opens small files that claim to be large.
func TestBoundedMemory(t *testing.T) {
	le := binary.LittleEndian
	var w gguftest.Writer
	w.Key("bytes", make([]bool, 1<<16))
	w.Key("words", make([]string, 1<<12))
	honest := w.Bytes()
	absurd := append([]byte("GGUF\x03\x00\x00\x00"), make([]byte, 8)...)
	absurd = le.AppendUint64(absurd, 1)
	absurd = append(absurd, 1, 0, 0, 0, 0, 0, 0, 0, 'k', 9, 0, 0, 0, 4, 0, 0, 0)
	absurd = le.AppendUint64(absurd, 1<<40)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if _, err := read(absurd); err == nil {
			t.Fatal("an array of 2^40 numbers was accepted")
		}
	}
	f := mustRead(t, honest)
	if _, ok := f.Ints("bytes"); ok {
		t.Error("numbers of eight times the file's size")
	}
	if _, ok := f.Strings("words"); !ok {
		t.Error("words refused that fit")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 10*uint64(len(honest)) {
		t.Errorf("%d bytes allocated for files of %d", n, len(honest))
	}
}

func TestTruncated(t *testing.T) {
	whole := gguftest.TinyModel(1, gguftest.Options{})
	for n := 0; n < len(whole); n += 1 + n/50 {
		var e *gguf.Error
		if _, err := read(whole[:n]); !errors.As(err, &e) || e.Offset > int64(len(whole)) {
			t.Fatalf("first %d bytes: %v", n, err)
		}
	}
}

func TestUnreadable(t *testing.T) {
	whole := gguftest.TinyModel(1, gguftest.Options{})
	// The file is said to be longer than what can be read.
	if _, err := gguf.Read(bytes.NewReader(whole[:100]), int64(len(whole))); err == nil || !strings.Contains(err.Error(), "offset 100") {
		t.Errorf("short read of the header: %v", err)
	}
	if _, err := gguf.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	tiny := gguftest.TinyModel(1, gguftest.Options{Layers: 1})
	f.Add(tiny[:16<<10])
	var w gguftest.Writer
	w.Key("general.alignment", uint32(32))
	w.Key("words", []string{"a", "b"})
	w.Key("flags", []bool{true})
	w.Tensor("t", gguf.Q80, []int{32, 2}, make([]byte, 68))
	small := w.Bytes()
	f.Add(small)
	f.Add(small[:len(small)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := read(b)
		if err != nil {
			return
		}
		for key := range file.Keys() {
			file.Strings(key)
			file.Ints(key)
			file.Floats(key)
			file.Int(key)
			file.Float(key)
			file.Bool(key)
			file.String(key)
		}
		for i := range file.Tensors() {
			ten := &file.Tensors()[i]
			if ten.Offset < 0 || ten.Offset+ten.Size > int64(len(b)) {
				t.Fatalf("tensor %+v outside the file of %d bytes", ten, len(b))
			}
			p := make([]byte, ten.Size)
			if err := file.ReadTensor(ten, p, 0); err != nil {
				t.Fatal(err)
			}
			x := make([]float32, ten.Elements())
			gguf.Dequantize(ten.Type, x, p)
		}
	})
}
