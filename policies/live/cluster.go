package live

import (
	"context"
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// Cluster is the replicated state that a node follows. Its methods may be called from
// several goroutines; those that wait end with their context.
type Cluster interface {
	// Rollout is the present table, never nil.
	Rollout() *rollout.Table
	// Ready is nil once the table has in it what was bound when the node started.
	Ready() error
	// Changed is closed at the next change of the table. Who takes it before Rollout
	// misses none.
	Changed() <-chan struct{}
	// Blob is the bytes of a version.
	Blob(ctx context.Context, d rollout.Digest) ([]byte, error)
	// Quarantine proposes to take a version out of service.
	Quarantine(ctx context.Context, d rollout.Digest, reason string) error
	// WriteState proposes writes to a policy's state.
	WriteState(ctx context.Context, policy string, writes []rollout.Write) error
	// Leading reports whether this node leads: it alone lets policies write.
	Leading() bool
}

// File is a module for [Alone], with its part in what decides.
type File struct {
	Module  []byte // nil for a native policy
	Policy  string // a native policy's name; of a module its manifest has one
	Release string // of a module, likewise
	Kind    rollout.Kind
	Weight  float64
	Params  []rollout.Param // those left out have their defaults
}

// alone is a cluster of one node whose policies do not change.
type alone struct {
	table   *rollout.Table
	modules map[rollout.Digest][]byte
	never   chan struct{}
}

// Alone is a cluster for a node that follows nobody: it has the files' policies bound
// for all models from the beginning, those of one kind together, in their order.
func Alone(files []File) (Cluster, error) {
	a := &alone{table: &rollout.Table{}, modules: map[rollout.Digest][]byte{}, never: make(chan struct{})}
	stages := map[rollout.Kind]rollout.Stage{}
	index := uint64(0)
	for _, f := range files {
		d := rollout.Digest{}
		if f.Module != nil {
			d = rollout.DigestOf(f.Module)
			a.modules[d] = f.Module
			index++
			v := rollout.Version{Policy: f.Policy, Release: f.Release, Kind: f.Kind, Digest: d, Size: int64(len(f.Module))}
			next, err := a.table.Put(v, index)
			if err != nil {
				return nil, err
			}
			a.table = next
		}
		stage := stages[f.Kind]
		stage.Parts = append(stage.Parts, rollout.NewPart(f.Policy, d, f.Weight, f.Params...))
		stages[f.Kind] = stage
	}
	for _, kind := range rollout.Kinds() {
		if stages[kind].Empty() {
			continue
		}
		index++
		next, err := a.table.Change(rollout.Change{Kind: kind, Verb: rollout.VerbPromote, Stage: stages[kind]}, index)
		if err != nil {
			return nil, err
		}
		a.table = next
	}
	return a, nil
}

var errAlone = errors.New("live: a node without planners has no replicated state")

func (a *alone) Rollout() *rollout.Table  { return a.table }
func (a *alone) Ready() error             { return nil }
func (a *alone) Changed() <-chan struct{} { return a.never }
func (a *alone) Leading() bool            { return false }

func (a *alone) Blob(_ context.Context, d rollout.Digest) ([]byte, error) {
	b, ok := a.modules[d]
	if !ok {
		return nil, fmt.Errorf("live: %w: no file has digest %s", rollout.ErrUnknown, d.Short())
	}
	return b, nil
}

// Quarantine has nobody to tell: the node has done it already.
func (a *alone) Quarantine(context.Context, rollout.Digest, string) error { return nil }

func (a *alone) WriteState(context.Context, string, []rollout.Write) error { return errAlone }
