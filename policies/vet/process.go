package vet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/policies/host"
)

// try has a job done, in the child or, without a command, here.
func (p *Pipeline) try(ctx context.Context, j job, m *host.Metered, wasm []byte) (result, error) {
	select {
	case <-p.turn:
		defer func() { p.turn <- struct{}{} }()
	case <-ctx.Done():
		return result{}, fmt.Errorf("vet: waiting for another trial: %w", ctx.Err())
	}
	j.Cache, j.CacheBytes, j.Timeout, j.Memory = p.config.Cache, p.config.CacheBytes, p.config.Timeout, p.config.Memory
	if err := prune(j.Cache, j.CacheBytes); err != nil {
		return result{}, fmt.Errorf("%w: %w", ErrChild, err)
	}
	if len(p.config.Command) == 0 {
		bounded, cancel := context.WithTimeout(ctx, j.Timeout)
		defer cancel()
		return trial(bounded, j, m), ctx.Err()
	}
	began := time.Now()
	r, err := p.child(ctx, j, wasm)
	if why, ok := errors.AsType[*killed](err); ok {
		// What the module did to the child is its own fault.
		return result{Steps: []Step{{StepCompile, Refused, why.Error(), millis(time.Since(began))}}}, nil
	}
	return r, err
}

// killed says that the child died of the module.
type killed struct{ why string }

func (k *killed) Error() string { return k.why }

// child runs the command. Errors are [ErrChild], *killed, or the context's.
func (p *Pipeline) child(ctx context.Context, j job, wasm []byte) (result, error) {
	bounded, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	c := exec.CommandContext(bounded, p.config.Command[0], p.config.Command[1:]...) //nolint:gosec // the command is this program's own
	stdout, stderr := &head{most: mostResult}, &head{most: 8 << 10}
	var input bytes.Buffer
	if err := j.write(&input, wasm); err != nil {
		return result{}, err
	}
	c.Stdin, c.Stdout, c.Stderr = &input, stdout, stderr
	c.Env, c.Dir = []string{"GOTRACEBACK=single"}, "/"
	c.WaitDelay = time.Second
	alone(c)
	err := c.Run()
	switch {
	case ctx.Err() != nil:
		return result{}, fmt.Errorf("vet: %w", ctx.Err())
	case bounded.Err() != nil:
		return result{}, late(c, j)
	case err != nil && c.ProcessState == nil:
		return result{}, fmt.Errorf("%w: %w", ErrChild, err)
	case err != nil:
		return result{}, died(err, stderr.String(), j)
	}
	var r result
	if err := json.Unmarshal(stdout.bytes, &r); err != nil {
		return result{}, fmt.Errorf("%w: its answer of %d bytes is none: %w", ErrChild, len(stdout.bytes), err)
	}
	return r, r.complete(j.Mode)
}

// complete says whether a child has told what came of every step, or of one that it
// refused.
func (r *result) complete(mode string) error {
	wanted := []string{StepCompile, StepStart, StepDryRun, StepCompare}
	if mode == modeCompile {
		wanted = wanted[:1]
	}
	for i, name := range wanted {
		switch {
		case i >= len(r.Steps) || r.Steps[i].Name != name:
			return fmt.Errorf("%w: its answer does not say what came of step %s", ErrChild, name)
		case r.Steps[i].Verdict == Refused:
			return nil
		case r.Steps[i].Verdict != Passed:
			return fmt.Errorf("%w: it says that step %s was %q", ErrChild, name, r.Steps[i].Verdict)
		}
	}
	return nil
}

// late tells why a child was not done in time: for what it had to do, or because the
// machine let it do nothing.
func late(c *exec.Cmd, j job) error {
	if s := c.ProcessState; s != nil {
		if got := s.UserTime() + s.SystemTime(); got > 0 && got < j.Timeout/4 {
			return fmt.Errorf("%w: in %s it got %s of processor time, for the machine is busy; try again", ErrChild, j.Timeout, got.Round(time.Millisecond))
		}
	}
	return &killed{fmt.Sprintf("compiling and trying it took longer than %s; split large functions, use less fuel", j.Timeout)}
}

// died tells why a child ended early from what it said last: for want of memory, by a
// signal, or by a fault of ours.
func died(err error, said string, j job) error {
	exit, _ := errors.AsType[*exec.ExitError](err)
	switch {
	case strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory"):
		return &killed{"compiling and trying it took more memory than is allowed"}
	case exit != nil && overdrawn(exit, j):
		return &killed{"compiling and trying it was stopped: " + exit.Error() + "; it takes too long, or too much memory"}
	case strings.Contains(said, "panic:") || strings.Contains(said, "fatal error:"):
		return &killed{"the runtime's compiler fails on it: " + firstLine(said)}
	case exit != nil && signalled(exit):
		return fmt.Errorf("%w: it was ended from outside: %w; try again", ErrChild, err)
	}
	return fmt.Errorf("%w: %w: %s", ErrChild, err, firstLine(said))
}

// firstLine is the first line that says something, cut to a sane length.
func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line[:min(len(line), 300)]
		}
	}
	return "it said nothing"
}

// head keeps the first bytes of what a child writes and takes the rest without
// keeping it.
type head struct {
	bytes []byte
	most  int
}

var _ io.Writer = (*head)(nil)

// Write takes all.
func (h *head) Write(b []byte) (int, error) {
	room := max(h.most-len(h.bytes), 0)
	h.bytes = append(h.bytes, b[:min(len(b), room)]...)
	return len(b), nil
}

// String is what was kept.
func (h *head) String() string { return string(h.bytes) }
