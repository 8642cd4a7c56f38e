package vet

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/policies/abi/abitest"
)

// Whatever comes as a job is one that was written, or an error.
func FuzzJob(f *testing.F) {
	var good bytes.Buffer
	if err := (job{Mode: modeVet, Cache: "/x", Timeout: time.Second}).write(&good, []byte("wasm")); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{2, 0, 0, 0, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		j, wasm, err := readJob(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := j.write(&again, wasm); err != nil {
			t.Fatal(err)
		}
		k, more, err := readJob(&again)
		if err != nil || k != j || !bytes.Equal(more, wasm) {
			t.Errorf("%+v became %+v: %v", j, k, err)
		}
	})
}

// What the child says is a result or none.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"steps":[{"name":"compile","verdict":"passed","text":"x","ms":1}],"trial":{"fuel":{"p50":3}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r result
		if json.Unmarshal(b, &r) != nil {
			return
		}
		if r.complete(modeVet) == nil && len(r.Steps) == 0 {
			t.Error("no step is enough")
		}
		report := Report{Accepted: true}
		for _, s := range r.Steps {
			report.Add(s)
		}
		if report.Accepted != (report.Err() == nil) {
			t.Errorf("accepted %t, %v", report.Accepted, report.Err())
		}
	})
}

// A key is read as it was written, or not at all.
func FuzzKeys(f *testing.F) {
	public, secret, err := FormatKeys(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(public)
	f.Add(secret)
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := ParsePublicKey(b); err == nil && len(k) != ed25519.PublicKeySize {
			t.Errorf("a key of %d bytes", len(k))
		}
		k, err := ParsePrivateKey(b)
		if err != nil {
			return
		}
		if _, err := Verify([]Key{{"x", k.Public().(ed25519.PublicKey)}}, b, Sign(k, b)); err != nil {
			t.Error(err)
		}
	})
}

// An upload is accepted or refused at a step, and the report says so; nothing that was
// read from its bytes breaks the pipeline.
func FuzzUpload(f *testing.F) {
	for _, h := range abitest.Corpus() {
		if len(h.Wasm) < 2000 {
			f.Add(h.Wasm)
		}
	}
	f.Add(abitest.Policy{}.Build())
	p, err := New(Config{AllowUnsigned: true, Timeout: 20 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4000 {
			return // a large one may take its seconds to compile, which is known
		}
		r, err := p.Check(t.Context(), b, nil)
		if (err == nil) != r.Accepted || r.Accepted != (r.Err() == nil) {
			t.Errorf("accepted %t, report %v, error %v", r.Accepted, r.Err(), err)
		}
	})
}
