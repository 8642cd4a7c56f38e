package section

import (
	"bytes"
	"errors"
	"testing"
)

func sample(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, "MAGIC")
	for i := range byte(3) {
		w.Write(i, 1, func(b []byte) []byte { return append(b, make([]byte, 10*int(i))...) })
	}
	if n, err := w.Result(); err != nil || n != int64(b.Len()) || w.Count() != 3 {
		t.Fatalf("%d bytes, %d sections, %v", n, w.Count(), err)
	}
	return b.Bytes()
}

// read is what a reader makes of b: the sections' types and sizes.
func read(b []byte) (sections [][2]int, err error) {
	r, err := NewReader(bytes.NewReader(b), "MAGIC")
	if err != nil {
		return nil, err
	}
	for range 3 {
		kind, _, payload, err := r.Next()
		if err != nil {
			return nil, err
		}
		sections = append(sections, [2]int{int(kind), len(payload)})
	}
	return sections, r.End()
}

func TestSectionsSurvive(t *testing.T) {
	got, err := read(sample(t))
	if err != nil || len(got) != 3 || got[2] != [2]int{2, 20} {
		t.Errorf("%v, %v", got, err)
	}
}

func TestEveryDamageIsNoticed(t *testing.T) {
	good := sample(t)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := read(bad); !errors.Is(err, ErrMalformed) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
		}
		if _, err := read(good[:i]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, err := read(append(bytes.Clone(good), 0)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a byte more: %v", err)
	}
}

func TestTooLongASectionIsNotWritten(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, "")
	w.Write(1, 1, func(b []byte) []byte { return append(b, make([]byte, Max+1)...) })
	if _, err := w.Result(); err == nil {
		t.Error("it was")
	}
}

func FuzzReader(f *testing.F) {
	f.Add(sample(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := read(b); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}

func TestAnotherFormatIsTold(t *testing.T) {
	const magic = "MAGIC\x01\n"
	for text, want := range map[string]bool{"MAGIC\x02\n": true, "OTHER\x01\n": false} {
		_, err := NewReader(bytes.NewReader([]byte(text)), magic)
		if !errors.Is(err, ErrMalformed) || errors.Is(err, ErrFormat) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
