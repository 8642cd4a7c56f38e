package vet

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/policies/module"
)

// Config says what a pipeline accepts and where it tries it. The zero value accepts
// nothing: it trusts no key.
type Config struct {
	// Trusted are the keys whose signatures count.
	Trusted []Key
	// AllowUnsigned accepts uploads without a signature. One that has a signature must
	// still have a good one, unless no key is trusted at all.
	AllowUnsigned bool
	// Elsewhere leaves signatures to others, who say with [Report.Judged] what they make
	// of them. Trusted and AllowUnsigned then do not count.
	Elsewhere bool
	// Cache is the directory for compiled code, [host.Options.Cache]; empty keeps none.
	Cache string
	// CacheBytes bounds that directory; 0 means 256 MiB. The files not used for the
	// longest go first.
	CacheBytes int64
	// Command is the program, with its arguments, that runs [Child]. Empty runs the
	// trial in this process, which no limit protects: for tests and for authors' own
	// machines.
	Command []string
	// Timeout is when the child is killed; 0 means 10 s.
	Timeout time.Duration
	// Memory is the most address space of the child in bytes beyond what an idle one
	// has; 0 means 2 GiB.
	Memory int64
}

// Validate reports every problem of a configuration.
func (c *Config) Validate() error {
	var all []error
	for _, k := range c.Trusted {
		if len(k.Public) != ed25519.PublicKeySize {
			all = append(all, fmt.Errorf("vet: key %q has %d bytes; a public key of Ed25519 has %d", k.Name, len(k.Public), ed25519.PublicKeySize))
		}
	}
	if c.Timeout < 0 || c.Memory < 0 || c.CacheBytes < 0 {
		all = append(all, errors.New("vet: Timeout, Memory and CacheBytes must not be negative"))
	}
	return errors.Join(all...)
}

// Pipeline checks uploads. Its methods may be called from several goroutines; trials
// run one after the other, so that a burst of uploads cannot take the machine.
type Pipeline struct {
	config Config
	turn   chan struct{} // holds one token: whoever has it runs a trial
}

// New makes a pipeline.
func New(c Config) (*Pipeline, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Memory == 0 {
		c.Memory = 2 << 30
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 256 << 20
	}
	p := &Pipeline{config: c, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p, nil
}

// Check takes an upload with its detached signature, or nil, through all steps. Errors
// wrap [ErrRefused], and then the report says which step refused and why; or
// [ErrChild], or the context's, and then nothing is known of the upload.
func (p *Pipeline) Check(ctx context.Context, wasm, signature []byte) (Report, error) {
	r := Report{Bytes: len(wasm)}
	m, err := p.read(&r, wasm, signature)
	if err != nil {
		return r, err
	}
	trial, err := p.try(ctx, job{Mode: modeVet}, m, wasm)
	if err != nil {
		return r, err
	}
	r.Trial = trial.Trial
	r.Steps = append(r.Steps, trial.Steps...)
	if err := r.Err(); err != nil {
		return r, err
	}
	r.Accepted = true
	return r, nil
}

// Warm compiles a policy that was accepted before into the cache, in the child.
// Errors are those of Check.
func (p *Pipeline) Warm(ctx context.Context, wasm []byte) error {
	if p.config.Cache == "" {
		return nil
	}
	m, err := host.Prepare(wasm)
	if err == nil {
		err = CheckFallback(m.Manifest) // an older release may have let it in
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	trial, err := p.try(ctx, job{Mode: modeCompile}, m, wasm)
	if err != nil {
		return err
	}
	r := Report{Steps: trial.Steps}
	return r.Err()
}

// read does the steps that need no child.
func (p *Pipeline) read(r *Report, wasm, signature []byte) (*host.Metered, error) {
	began := time.Now()
	if len(wasm) == 0 {
		return nil, r.refused(StepSize, began, errors.New("the upload is empty"))
	}
	if len(wasm) > rollout.MaxModule {
		return nil, r.refused(StepSize, began, fmt.Errorf("the upload has %d bytes; at most %d are allowed: strip it, or build it with optimisation for size", len(wasm), rollout.MaxModule))
	}
	r.passed(StepSize, began, "%d bytes of %d", len(wasm), rollout.MaxModule)

	began = time.Now()
	digest := sha256.Sum256(wasm)
	r.Digest = hex.EncodeToString(digest[:])
	r.passed(StepDigest, began, "SHA-256 %s", r.Digest)

	began = time.Now()
	text, err := p.signed(r, digest, signature)
	if err != nil {
		return nil, r.refused(StepSignature, began, err)
	}
	r.passed(StepSignature, began, "%s", text)

	began = time.Now()
	m, err := module.Decode(wasm, module.Options{Imports: abi.Imports()})
	if err != nil {
		return nil, r.refused(StepStructure, began, err)
	}
	r.passed(StepStructure, began, "%d functions, %d imports, memory of %s", len(m.Funcs), len(m.Imports), pages(m.Memory))

	began = time.Now()
	manifest, err := abi.Check(m)
	if err == nil {
		err = CheckFallback(manifest)
	}
	if err != nil {
		return nil, r.refused(StepContract, began, err)
	}
	r.Manifest, r.Name, r.Version, r.Kind = manifest, manifest.Name, manifest.Version, manifest.Kind
	r.passed(StepContract, began, "%s %s@%s of abi %s", manifest.Kind, manifest.Name, manifest.Version, manifest.ABI)

	began = time.Now()
	metered, err := host.Meter(m, manifest)
	if err != nil {
		return nil, r.refused(StepMeter, began, err)
	}
	r.passed(StepMeter, began, "fuel of %d units a call, memory of %d pages", manifest.Fuel, manifest.Pages)
	return metered, nil
}

func pages(m *module.Memory) string {
	if m == nil {
		return "no pages"
	}
	return fmt.Sprintf("%d pages", m.Min)
}

// signed judges the signature and says so in a sentence.
func (p *Pipeline) signed(r *Report, digest [sha256.Size]byte, signature []byte) (text string, err error) {
	if p.config.Elsewhere {
		return "judged by the planners", nil
	}
	r.Signer, text, err = Trust{p.config.Trusted, p.config.AllowUnsigned}.Judge(digest, signature)
	return text, err
}
