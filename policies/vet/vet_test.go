package vet_test

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// TestMain makes the test's program its own child.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "policy-child" {
		if err := vet.Child(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "hog" {
		hog()
	}
	if len(os.Args) > 1 && os.Args[1] == "yield" {
		yield()
	}
	goleak.VerifyTestMain(m)
}

// hog takes more memory than it may, as a compiler might.
func hog() {
	if err := vet.Confine(32 << 20); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var all [][]byte
	for range 64 {
		all = append(all, make([]byte, 64<<20))
	}
	fmt.Fprintln(os.Stderr, len(all), "pieces of 64 MiB were to be had")
	os.Exit(0)
}

// pipeline tries in a child and accepts what is unsigned.
func pipeline(t testing.TB, change func(*vet.Config)) *vet.Pipeline {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := vet.Config{AllowUnsigned: true, Cache: t.TempDir(), Command: []string{self, "policy-child"}, Timeout: 60 * time.Second}
	if err := os.Chmod(c.Cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&c)
	}
	p, err := vet.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// product scores by the product of two columns.
func product() abitest.Policy {
	return abitest.Policy{
		Columns: []string{"queued_tokens", "prefill_seconds_per_token"}, Locals: "i32",
		Code: abitest.Vectors("local.get 1 local.get 1 v128.load @0 local.get 1 v128.load @1 f32x4.mul v128.store @out"),
	}
}

func good(kind abi.Kind) []byte {
	switch kind {
	case abi.Admission:
		return abitest.Policy{Kind: kind, Code: "i32.const @request i64.load32_u 24 i64.const 1 i64.and"}.Build()
	case abi.Autoscaler:
		return abitest.Policy{Kind: kind, Columns: []string{"arrivals"}, Locals: "i32", Code: abitest.Loop("local.get 1 local.get 1 f32.load @0 i32.trunc_sat_f32_u i32.store @out")}.Build()
	case abi.Observer:
		return abitest.Policy{Kind: kind, Columns: []string{"ttft_ms"}, Code: "i32.const 0 i32.const 64 i32.const 5 i64.const 1 call 6 drop i32.const 0"}.Build()
	default:
		return product().Build()
	}
}

func TestGoodPoliciesPass(t *testing.T) {
	for _, child := range []bool{true, false} {
		p := pipeline(t, func(c *vet.Config) {
			if !child {
				c.Command = nil
			}
		})
		for _, kind := range abi.Kinds() {
			r, err := p.Check(t.Context(), good(kind), nil)
			if err != nil || !r.Accepted {
				t.Errorf("child %t, %s: %v", child, kind, err)
			}
			if text, _ := json.MarshalIndent(r, "", " "); testing.Verbose() {
				t.Logf("%s", text)
			}
			if len(r.Steps) != 10 || r.Trial == nil || r.Trial.Calls == 0 || r.Kind != kind {
				t.Errorf("child %t, %s: %d steps, trial %+v", child, kind, len(r.Steps), r.Trial)
			}
		}
	}
}

func TestSignatures(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	wasm := good(abi.Router)
	other := append([]byte(nil), wasm...)
	other[len(other)-1] ^= 1
	keys := []vet.Key{{Name: "ops", Public: public}}
	tests := []struct {
		name      string
		keys      []vet.Key
		unsigned  bool
		signature []byte
		want      string // of the refusal; empty is accepted
		signer    string
	}{
		{"signed", keys, false, vet.Sign(private, wasm), "", "ops"},
		{"unsigned and allowed", keys, true, nil, "", ""},
		{"unsigned", keys, false, nil, "there is none", ""},
		{"by a stranger", keys, false, vet.Sign(stranger, wasm), "none of the 1 trusted keys", ""},
		{"by a stranger where unsigned ones are allowed", keys, true, vet.Sign(stranger, wasm), "none of the 1 trusted keys", ""},
		{"of other bytes", keys, false, vet.Sign(private, other), "none of the 1 trusted keys", ""},
		{"cut off", keys, false, vet.Sign(private, wasm)[:63], "it has 63 bytes", ""},
		{"nobody is trusted", nil, false, vet.Sign(private, wasm), "no key is trusted", ""},
		{"nobody is trusted and unsigned ones are allowed", nil, true, vet.Sign(private, wasm), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pipeline(t, func(c *vet.Config) { c.Trusted, c.AllowUnsigned, c.Command = tt.keys, tt.unsigned, nil })
			r, err := p.Check(t.Context(), wasm, tt.signature)
			if tt.want == "" {
				if err != nil || r.Signer != tt.signer {
					t.Errorf("signer %q, %v", r.Signer, err)
				}
				return
			}
			if !errors.Is(err, vet.ErrRefused) || !errors.Is(err, vet.ErrSignature) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestKeysAreReadAgain(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	p, s, err := vet.FormatKeys(private)
	if err != nil {
		t.Fatal(err)
	}
	gotPublic, err := vet.ParsePublicKey(p)
	if err != nil || !gotPublic.Equal(public) {
		t.Error("the public key is another", err)
	}
	gotPrivate, err := vet.ParsePrivateKey(s)
	if err != nil || !gotPrivate.Equal(private) {
		t.Error("the private key is another", err)
	}
	if _, err := vet.ParsePublicKey(s); !errors.Is(err, vet.ErrKey) {
		t.Errorf("a private key was taken for a public one: %v", err)
	}
	if _, err := vet.ParsePrivateKey([]byte("x")); !errors.Is(err, vet.ErrKey) {
		t.Errorf("got %v", err)
	}
}

// What the child has compiled is loaded by another process from the cache.
func TestTheCacheIsTheHosts(t *testing.T) {
	dir := t.TempDir()
	p := pipeline(t, func(c *vet.Config) { c.Cache = dir })
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	wasm := good(abi.Router)
	if err := p.Warm(t.Context(), wasm); err != nil {
		t.Fatal(err)
	}
	h, err := host.New(t.Context(), nobody{}, host.Options{Cache: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close(t.Context()) }()
	policy, err := h.Load(t.Context(), wasm, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := policy.Take()
	in.F32(0)[0], in.F32(1)[0] = 3, 4
	if scores, err := in.Score(1); err != nil || scores[0] != 12 {
		t.Errorf("scores %v, %v", scores, err)
	}
	policy.Put(in)
	if err := policy.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// nobody offers nothing.
type nobody struct{}

func (nobody) Log(string, int, []byte)                       {}
func (nobody) Count(string, int, int64)                      {}
func (nobody) Observe(string, int, float64)                  {}
func (nobody) NowMillis() int64                              { return 0 }
func (nobody) Get(string, bool, []byte, []byte) int          { return -1 }
func (nobody) Set(string, bool, []byte, []byte) bool         { return false }
func (nobody) Add(string, bool, []byte, int64) (int64, bool) { return 0, false }
