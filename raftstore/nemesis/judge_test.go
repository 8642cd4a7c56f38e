package nemesis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/nemesis/history"
)

// judge watches a run for what may never be.
type judge struct {
	yard *yard

	mu      sync.Mutex
	leaders map[string]map[uint64]string           // node by group and term
	samples map[string]map[uint64]raftstore.Sample // by group and index
	said    map[string]bool
}

func newJudge(y *yard) *judge {
	return &judge{yard: y, leaders: map[string]map[uint64]string{}, samples: map[string]map[uint64]raftstore.Sample{}, said: map[string]bool{}}
}

// run looks at every node again and again until ctx ends.
func (j *judge) run(ctx context.Context) {
	for pause(ctx, 20*time.Millisecond) {
		for _, n := range j.yard.all() {
			j.look(n)
		}
	}
}

func (j *judge) look(n *node) {
	s := n.store.Load()
	if s == nil {
		return
	}
	before, now := s.Status(), s.Status()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.group(n, "core", before.Core, now.Core)
	j.group(n, "prefix", before.Prefix, now.Prefix)
}

// group compares what a node says of a group with what others said. A status is
// not read at one moment: only where two in a row agree, the node led in that
// term.
func (j *judge) group(n *node, name string, before, now raftstore.GroupStatus) {
	if j.leaders[name] == nil {
		j.leaders[name], j.samples[name] = map[uint64]string{}, map[uint64]raftstore.Sample{}
	}
	if now.State == "leader" && before.Term == now.Term {
		if other, ok := j.leaders[name][now.Term]; ok && other != n.id {
			j.fault("group %s, term %d: %s and %s lead", name, now.Term, other, n.id)
		}
		j.leaders[name][now.Term] = n.id
	}
	for _, x := range now.Samples {
		first, ok := j.samples[name][x.Index]
		if !ok {
			j.samples[name][x.Index] = x
		} else if first != x {
			j.fault("group %s, entry %d: %s has digest %s, another had %s", name, x.Index, n.id, x.Digest, first.Digest)
		}
	}
}

// fault tells of each fault once.
func (j *judge) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !j.said[text] {
		j.said[text] = true
		j.yard.t.Error(text)
	}
}

// equal waits until all nodes have applied the same, and compares.
func (j *judge) equal(ctx context.Context) {
	list := j.yard.all()
	var state strings.Builder
	same := until(ctx, patience, func() bool {
		state.Reset()
		first := list[0].store.Load().Status()
		alike := true
		for _, n := range list {
			st := n.store.Load().Status()
			fmt.Fprintf(&state, "\n  %s: core %d, prefix %d %s %s", n.id, st.Core.Applied, st.Prefix.Applied, st.NotReady, st.Fault)
			alike = alike && st.Core.Applied == first.Core.Applied && st.Prefix.Applied == first.Prefix.Applied
		}
		return alike && j.digests(list, false)
	})
	if !same {
		j.yard.t.Errorf("nodes do not come to the same state within %v:%s", patience, state.String())
		j.digests(list, true)
	}
}

// checksummed is the machine behind a store's state.
type checksummed interface{ Checksum() uint64 }

func (j *judge) digests(list []*node, tell bool) bool {
	var first string
	for i, n := range list {
		s := n.store.Load()
		now := fmt.Sprintf("core %016x, prefix %016x", s.State().(checksummed).Checksum(), s.Prefix().Digest())
		if tell {
			j.yard.t.Logf("%s: %s", n.id, now)
		}
		if i == 0 {
			first = now
		}
		if now != first {
			return false
		}
	}
	return true
}

// caches compares the index of every node with what the workers hold.
func (j *judge) caches(workers []*worker) {
	for _, n := range j.yard.all() {
		table := n.store.Load().Prefix().Table()
		if rows := len(table.Rows()); rows != len(workers) {
			j.yard.t.Errorf("%s knows %d workers of %d", n.id, rows, len(workers))
		}
		for _, w := range workers {
			row, ok := table.Find(w.id, w.epoch)
			if !ok || !row.Exact {
				j.yard.t.Errorf("%s: worker %s is not exact (known: %v)", n.id, w.id, ok)
				continue
			}
			var holds []prefix.Hash
			table.Index.Each(row.Worker, func(h prefix.Hash) { holds = append(holds, h) })
			slices.Sort(holds)
			if truth := slices.Sorted(slices.Values(w.cache)); !slices.Equal(holds, truth) {
				j.yard.t.Errorf("%s: the index has %d blocks of %s, its cache %d", n.id, len(holds), w.id, len(truth))
			}
		}
	}
}

// answers judges what clients were told.
func (j *judge) answers(log *history.Log, each time.Duration) {
	err := log.Check(each)
	switch {
	case errors.Is(err, history.ErrIllegal):
		j.yard.t.Error(err)
	case err != nil:
		j.yard.t.Logf("some histories are too hard: %v", err)
	}
}

// compared is how many indices digests were taken at.
func (j *judge) compared() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.samples {
		n += len(s)
	}
	return n
}
