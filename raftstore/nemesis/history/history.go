package history

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	// ErrIllegal means that no order of the operations explains the answers.
	ErrIllegal = errors.New("not linearizable")
	// ErrUndecided means that the time was too short to say.
	ErrUndecided = errors.New("not decided in time")
)

// Log notes operations. The zero value is empty. It is safe for concurrent use.
type Log struct {
	mu        sync.Mutex
	clock     int64
	registers map[string][]porcupine.Operation
	quotas    map[string][]porcupine.Operation
}

// Call is an operation that has begun.
type Call struct {
	log    *Log
	client int
	at     int64
}

// Begin notes that a client is about to ask.
func (l *Log) Begin(client int) Call { return Call{l, client, l.tick()} }

// tick orders calls and answers. A count is as good as time and has no ties.
func (l *Log) tick() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	return l.clock
}

// Register notes what a client was told of a register.
func (c Call) Register(key string, op RegisterOp, got RegisterAnswer) {
	c.end(&c.log.registers, key, op, got, got.Unknown)
}

// Quota notes what a client was told of a tenant's quota.
func (c Call) Quota(tenant string, op QuotaOp, got QuotaAnswer) {
	c.end(&c.log.quotas, tenant, op, got, got.Unknown)
}

func (c Call) end(to *map[string][]porcupine.Operation, key string, in, out any, unknown bool) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.clock++
	end := c.log.clock
	if unknown {
		end = math.MaxInt64
	}
	if *to == nil {
		*to = map[string][]porcupine.Operation{}
	}
	(*to)[key] = append((*to)[key], porcupine.Operation{ClientId: c.client, Input: in, Call: c.at, Output: out, Return: end})
}

// Registers lists the keys of which anything was noted.
func (l *Log) Registers() []string { return l.names(&l.registers) }

// Tenants lists the tenants of which anything was noted.
func (l *Log) Tenants() []string { return l.names(&l.quotas) }

func (l *Log) names(of *map[string][]porcupine.Operation) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for name := range *of {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Stats is how much was noted.
type Stats struct{ Objects, Operations, Unknown int }

// Stats counts.
func (l *Log) Stats() (s Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, all := range []map[string][]porcupine.Operation{l.registers, l.quotas} {
		for _, ops := range all {
			s.Objects++
			s.Operations += len(ops)
			for i := range ops {
				if ops[i].Return == math.MaxInt64 {
					s.Unknown++
				}
			}
		}
	}
	return s
}

// Check judges every object, each within a time. The error names all that are
// faulty, with their histories, and wraps ErrIllegal or ErrUndecided, ErrIllegal
// if there is one.
func (l *Log) Check(each time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	illegal := judge("register", l.registers, registers, each)
	return errors.Join(illegal, judge("quota", l.quotas, quotas, each))
}

func judge(what string, objects map[string][]porcupine.Operation, model porcupine.Model, each time.Duration) error {
	var faults []error
	for name, ops := range objects {
		if what == "register" {
			ops = withoutUnseen(ops)
		}
		switch porcupine.CheckOperationsTimeout(model, ops, each) {
		case porcupine.Illegal:
			faults = append(faults, fmt.Errorf("%s %q: %w:\n%s", what, name, ErrIllegal, tell(ops)))
		case porcupine.Unknown:
			faults = append(faults, fmt.Errorf("%s %q, %d operations: %w", what, name, len(ops), ErrUndecided))
		case porcupine.Ok:
		}
	}
	return errors.Join(faults...)
}

// tell writes a history for people, in the order of the calls.
func tell(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for i := range ops {
		o := &ops[i]
		end := strconv.FormatInt(o.Return, 10)
		if o.Return == math.MaxInt64 {
			end = "?"
		}
		fmt.Fprintf(&b, "  %6d-%-6s client %-3d %v -> %v\n", o.Call, end, o.ClientId, o.Input, o.Output)
	}
	return b.String()
}
