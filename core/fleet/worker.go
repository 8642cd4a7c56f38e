package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/unit"
)

// WorkerID names a worker across restarts, e.g. "decode-0". Operators choose it.
type WorkerID string

// Epoch names one incarnation of a worker: the Raft index at which it
// registered. Zero is no incarnation.
type Epoch uint64

// Role says which phases a worker serves.
type Role uint8

// The roles, a set of phases.
const (
	RolePrefill Role = 1 << iota // computes prompts for other workers
	RoleDecode                   // generates, from moved KV or from its own prefill
	RoleBoth    = RolePrefill | RoleDecode
)

// String is the role's name in flags, metrics and the API.
func (r Role) String() string {
	switch r {
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	case RoleBoth:
		return "both"
	default:
		return "unknown"
	}
}

// ParseRole reads a role's name.
func ParseRole(s string) (Role, error) {
	for _, r := range []Role{RolePrefill, RoleDecode, RoleBoth} {
		if r.String() == s {
			return r, nil
		}
	}
	return 0, fmt.Errorf("unknown role %q: use prefill, decode or both", s)
}

// Capacity is what a worker can hold. A zero field is unknown, not none.
type Capacity struct {
	KVBlocks    unit.Blocks
	BlockTokens unit.Tokens
	MaxContext  unit.Tokens // longest prompt plus output
	MaxRunning  int         // requests computed at once
}

// Label is one operator-declared fact about a worker, e.g. zone=a.
type Label struct{ Key, Value string }

// Worker is one registered incarnation.
type Worker struct {
	ID          WorkerID
	Epoch       Epoch
	Incarnation string // chosen by the worker at start; makes registering again idempotent
	Role        Role
	Engine      string   // adapter name: openai, cpu, scripted, ...
	Models      []string // served model names; the first is the base model
	URL         string   // where its engine's API listens
	Transfer    string   // host:port of its KV transfer endpoint; empty when it has none
	// Compat groups workers whose KV is interchangeable (model digest, layout,
	// dtype). Only workers of one group are paired. Empty pairs with nobody.
	Compat   string
	Capacity Capacity
	Labels   []Label // sorted by key
	Draining bool
}

// notInID keeps out of ids what logs, metrics and shells write in another way.
func notInID(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\"'`\\", c) }

// Validate reports every fault of a registration at once.
func (w *Worker) Validate() error {
	var faults []error
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, errors.New(text))
		}
	}
	fault(w.ID == "", "worker id is empty")
	fault(len(w.ID) > 128, "worker id is longer than 128 bytes")
	fault(strings.ContainsFunc(string(w.ID), notInID), "worker id has a character other than printable ASCII, or a space, quote or backslash")
	fault(w.Incarnation == "", "incarnation is empty")
	fault(w.Role == 0 || w.Role&^RoleBoth != 0, "role is not prefill, decode or both")
	fault(w.Engine == "", "engine is empty")
	fault(len(w.Models) == 0, "no model is served")
	fault(slices.Contains(w.Models, ""), "a model name is empty")
	fault(len(w.Models) > 1024, "more than 1024 models")
	fault(w.URL == "", "url is empty")
	fault(len(w.Incarnation) > 128, "incarnation is longer than 128 bytes")
	fault(slices.ContainsFunc(w.Models, func(m string) bool { return len(m) > 512 }), "a model name is longer than 512 bytes")
	fault(len(w.Engine) > 128 || len(w.URL) > 2048 || len(w.Transfer) > 512 || len(w.Compat) > 512, "engine, url, transfer or compat is too long")
	fault(len(w.Labels) > 64, "more than 64 labels")
	fault(slices.ContainsFunc(w.Labels, func(l Label) bool { return l.Key == "" || len(l.Key) > 128 || len(l.Value) > 512 }), "a label has no key or is too long")
	fault(!slices.IsSortedFunc(w.Labels, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) }), "labels are not sorted by key")
	fault(w.Capacity.KVBlocks < 0 || w.Capacity.BlockTokens < 0 || w.Capacity.MaxContext < 0 || w.Capacity.MaxRunning < 0, "a capacity is negative")
	fault(w.Role == RolePrefill && w.Transfer == "", "a prefill worker needs a transfer endpoint")
	return errors.Join(faults...)
}
