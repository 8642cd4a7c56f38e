package live

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// The lines that a version may log: so many a second, and so many at once.
const (
	linesPerSecond = 10
	linesAtOnce    = 50
)

// mostFamilies bounds the histograms that policies may declare in a process's life.
const mostFamilies = 256

// services is what the host offers to one version's guests; see [host.Services]. A
// shadow's count and log under a stage of their own, and what they write nobody else
// reads: it goes when the shadow does.
type services struct {
	node  *Node
	log   *slog.Logger
	state string // the name of the state that it uses
	local *local
	aside *local // what a shadow has written to the cluster's state; nil for what decides

	mu              sync.Mutex // of the bucket
	lines           float64
	filled          time.Time
	logged, dropped measure.Counter

	counters   []measure.Counter
	histograms []*measure.Histogram // nil for one too many
}

// The stages under which policies' own metrics stand: what a canary counts is counted,
// since it decides.
const (
	deciding  = "deciding"
	shadowing = "shadow"
)

func (n *Node) servicesOf(m *abi.Manifest, shadow bool) *services {
	ref := m.Name + "@" + m.Version
	r := n.deps.Registry
	s := &services{
		node: n, log: n.deps.Log.With("policy", ref), state: m.StateOf(), lines: linesAtOnce, filled: n.deps.Clock.Now(),
		logged: r.Counter(measure.PolicyLines, ref, "logged"), dropped: r.Counter(measure.PolicyLines, ref, "dropped"),
	}
	stage := deciding
	if shadow {
		stage = shadowing
		s.local, s.aside, s.log = newLocal(), newLocal(), s.log.With("stage", stage)
	} else {
		s.local = n.locals.of(s.state, n.usesState)
	}
	for _, c := range m.Counters {
		s.counters = append(s.counters, r.Counter(measure.PolicyCounter, m.Name, c.Name, stage))
	}
	for _, h := range m.Histograms {
		s.histograms = append(s.histograms, n.histogram(m.Name, stage, h))
	}
	return s
}

// histogram is one that a policy declares. Its name holds the policy's, since another
// policy's of that name may have other buckets.
func (n *Node) histogram(policy, stage string, m abi.Metric) *measure.Histogram {
	name := strings.ReplaceAll(policy, "-", "_") + "_" + m.Name
	n.familiesMu.Lock()
	defer n.familiesMu.Unlock()
	if !n.families[name] {
		if len(n.families) >= mostFamilies {
			return nil
		}
		n.families[name] = true
	}
	h := n.deps.Registry.Histogram(measure.PolicyHistogram(name, m.Buckets), policy, stage)
	return &h
}

// Log writes a line under the policy's name, unless there are too many.
func (s *services) Log(_ string, level int, line []byte) {
	if !s.mayLog() {
		s.dropped.Inc()
		return
	}
	s.logged.Inc()
	levels := [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	s.log.Log(context.Background(), levels[min(max(level, 0), len(levels)-1)], "policy says", "line", strings.ToValidUTF8(string(line), "?"))
}

// mayLog takes from the bucket.
func (s *services) mayLog() bool {
	now := s.node.deps.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = min(s.lines+linesPerSecond*now.Sub(s.filled).Seconds(), linesAtOnce)
	s.filled = now
	if s.lines < 1 {
		return false
	}
	s.lines--
	return true
}

// Count adds to a counter of the manifest. Counters only rise.
func (s *services) Count(_ string, counter int, n int64) {
	if n > 0 && counter < len(s.counters) {
		s.counters[counter].Add(float64(n))
	}
}

// Observe counts a value in a histogram of the manifest.
func (s *services) Observe(_ string, histogram int, v float64) {
	if histogram < len(s.histograms) && s.histograms[histogram] != nil {
		s.histograms[histogram].Observe(v)
	}
}

// NowMillis is the node's time.
func (s *services) NowMillis() int64 { return s.node.deps.Clock.Now().UnixMilli() }

// Get reads from the cluster's state, or the node's.
func (s *services) Get(_ string, replicated bool, key, buf []byte) int {
	if !replicated {
		return s.local.get(key, buf)
	}
	if s.aside != nil {
		if n := s.aside.get(key, buf); n >= 0 {
			return n
		}
	}
	value, ok := s.node.writer.get(s.state, key)
	if !ok {
		return -1
	}
	copy(buf, value)
	return len(value)
}

// Set writes to it. The cluster's is written by the leader alone.
func (s *services) Set(_ string, replicated bool, key, value []byte) bool {
	if !replicated {
		s.local.set(key, value)
		return true
	}
	if !s.node.deps.Cluster.Leading() {
		return false
	}
	if s.aside != nil {
		s.aside.set(key, value)
		return true
	}
	return s.node.writer.set(s.state, key, value)
}

// Add adds to a number in it, likewise.
func (s *services) Add(_ string, replicated bool, key []byte, delta int64) (int64, bool) {
	if !replicated {
		return s.local.add(key, delta), true
	}
	if !s.node.deps.Cluster.Leading() {
		return 0, false
	}
	if s.aside != nil {
		return s.addAside(key, delta), true
	}
	return s.node.writer.add(s.state, key, delta)
}

// addAside adds to what the shadow has written under a key, and else to the cluster's
// number.
func (s *services) addAside(key []byte, delta int64) int64 {
	if s.aside.get(key, nil) < 0 {
		if value, ok := s.node.writer.get(s.state, key); ok {
			s.aside.set(key, rollout.NumberValue(rollout.Number(value)))
		}
	}
	return s.aside.add(key, delta)
}
