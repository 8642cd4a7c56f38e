package vet

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/host"
)

// The modes of a job.
const (
	modeVet     = "vet"     // compile and try
	modeCompile = "compile" // into the cache, no more
)

// job is what the child is to do. It stands in front of the module's bytes on its
// input, as JSON behind its length in four bytes, little-endian.
type job struct {
	Mode       string        `json:"mode"`
	Cache      string        `json:"cache"`
	CacheBytes int64         `json:"cache_bytes"`
	Timeout    time.Duration `json:"timeout_ns"`
	Memory     int64         `json:"memory"`
}

// mostJob bounds a job's JSON, and mostResult what the child may answer.
const (
	mostJob    = 16 << 10
	mostResult = 1 << 20
)

// result is the child's answer.
type result struct {
	Steps []Step `json:"steps"`
	Trial *Trial `json:"trial,omitempty"`
}

// ChildCommand is the hidden command of the yardmaster program that runs [Child]:
// Config.Command is the program's path and this.
const ChildCommand = "policy-child"

// Child is what the hidden command runs in a process of its own: it limits itself,
// reads a job and a module, tries the module and writes the result. An error is for
// the parent's log; a module that is refused is none.
func Child(stdin io.Reader, stdout io.Writer) error {
	j, wasm, err := readJob(stdin)
	if err != nil {
		return err
	}
	if err := confine(j); err != nil {
		return err
	}
	m, err := host.Prepare(wasm)
	if err != nil {
		return fmt.Errorf("vet: the parent sent a module that it had refused: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), j.Timeout)
	defer cancel()
	if err := json.NewEncoder(stdout).Encode(trial(ctx, j, m)); err != nil {
		return fmt.Errorf("vet: %w", err)
	}
	return nil
}

func (j job) write(w io.Writer, wasm []byte) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("vet: %w", err)
	}
	for _, b := range [][]byte{binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text, wasm} {
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("vet: %w", err)
		}
	}
	return nil
}

func readJob(r io.Reader) (j job, wasm []byte, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return j, nil, fmt.Errorf("vet: no job on the input: %w", err)
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > mostJob {
		return j, nil, fmt.Errorf("vet: a job of %d bytes; at most %d are allowed", n, mostJob)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return j, nil, fmt.Errorf("vet: the job is cut off: %w", err)
	}
	if err := json.Unmarshal(text, &j); err != nil {
		return j, nil, fmt.Errorf("vet: %w", err)
	}
	wasm, err = io.ReadAll(io.LimitReader(r, rollout.MaxModule+1))
	switch {
	case err != nil:
		return j, nil, fmt.Errorf("vet: %w", err)
	case len(wasm) > rollout.MaxModule:
		return j, nil, fmt.Errorf("vet: the module has more than %d bytes", rollout.MaxModule)
	case j.Timeout <= 0 || j.Mode != modeVet && j.Mode != modeCompile:
		return j, nil, fmt.Errorf("vet: unknown mode %q or no time to work", j.Mode)
	}
	return j, wasm, nil
}
