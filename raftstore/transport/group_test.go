package transport

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// sum is a state machine that remembers what it was told.
type sum struct {
	mu      sync.Mutex
	entries []string
}

func (s *sum) Apply(l *raft.Log) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, string(l.Data))
	return nil
}

func (s *sum) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == 0 {
		return ""
	}
	return s.entries[len(s.entries)-1]
}

const big = 3 << 20 // bytes of a snapshot

func (s *sum) Snapshot() (raft.FSMSnapshot, error) { return snap(s.last()), nil }

func (s *sum) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if len(b) < big {
		return fmt.Errorf("%d bytes", len(b))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = []string{string(b[big:])}
	return r.Close()
}

type snap string

func (s snap) Persist(sink raft.SnapshotSink) error {
	_, err := sink.Write(append(make([]byte, big), s...))
	return errors.Join(err, sink.Close())
}

func (snap) Release() {}

// member is a Raft node over a fleet's transport.
type member struct {
	*raft.Raft
	fsm *sum
}

func (f *fleet) member(id string, voters ...string) member {
	f.t.Helper()
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id)
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 300*time.Millisecond, 300*time.Millisecond, 150*time.Millisecond
	conf.CommitTimeout = 20 * time.Millisecond
	conf.TrailingLogs = 1
	conf.Logger = hclog.NewNullLogger()
	store, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	guarded := Guard(f.rafts[id])
	m := member{fsm: &sum{}}
	var first raft.Configuration
	for _, v := range voters {
		first.Servers = append(first.Servers, raft.Server{ID: raft.ServerID(v), Address: raft.ServerAddress(v + ".moved:1")})
	}
	if len(voters) > 0 {
		if err := raft.BootstrapCluster(conf, store, store, snaps, guarded, first); err != nil {
			f.t.Fatal(err)
		}
	}
	var err error
	if m.Raft, err = raft.NewRaft(conf, m.fsm, store, store, snaps, guarded); err != nil {
		f.t.Fatal(err)
	}
	guarded.Watch(m.Raft)
	f.t.Cleanup(func() {
		_ = m.Shutdown().Error()
		_ = guarded.Close()
	})
	return m
}

// leader waits for one among the ids.
func leader(t *testing.T, ms map[string]member, among ...string) string {
	t.Helper()
	found := ""
	until(t, "no leader", func() bool {
		for _, id := range among {
			if ms[id].VerifyLeader().Error() == nil {
				found = id
			}
		}
		return found != ""
	})
	return found
}

func propose(t *testing.T, ms map[string]member, text string, among ...string) {
	t.Helper()
	until(t, text+" is not committed", func() bool {
		return ms[leader(t, ms, among...)].Apply([]byte(text), time.Second).Error() == nil
	})
}

// A group elects, replicates, survives a leader that hears but is not heard,
// and brings a newcomer up by snapshot; all of it through the port.
func TestGroup(t *testing.T) {
	ids := []string{"a", "b", "c"}
	f := newFleet(t, ids...)
	ms := map[string]member{}
	for _, id := range ids {
		ms[id] = f.member(id, ids...)
	}
	propose(t, ms, "first", ids...)

	lost := leader(t, ms, ids...)
	var rest []string
	step := faultnet.Step{Faults: map[faultnet.Link]faultnet.Fault{}}
	for _, id := range ids {
		if id != lost {
			rest = append(rest, id)
			step.Faults[faultnet.Link{From: lost, To: id}] = faultnet.Fault{Blackhole: true}
		}
	}
	f.net.Apply(step)
	propose(t, ms, "without it", rest...)
	f.net.Heal()
	until(t, "the lost one does not catch up", func() bool { return ms[lost].fsm.last() == "without it" })

	first := leader(t, ms, ids...)
	if err := ms[first].Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	f.start("d")
	ms["d"] = f.member("d")
	until(t, "d is not added", func() bool {
		return ms[leader(t, ms, ids...)].AddNonvoter("d", "d.moved:1", 0, time.Second).Error() == nil
	})
	until(t, "d does not catch up", func() bool { return ms["d"].fsm.last() == "without it" })
}

// The network breaks at random, by seed, and what was acknowledged is there
// when it has healed.
func TestGroupInAStorm(t *testing.T) {
	const seed = 11
	ids := []string{"a", "b", "c"}
	f := newFleet(t, ids...)
	ms := map[string]member{}
	for _, id := range ids {
		ms[id] = f.member(id, ids...)
	}
	propose(t, ms, "begin", ids...)
	rng := rand.New(rand.NewPCG(seed, 0))
	var acknowledged []string
	for n := range 8 {
		step := faultnet.Draw(rng, ids)
		f.net.Apply(step)
		for k := range 10 {
			text := fmt.Sprintf("%s %d", step.Name, 10*n+k)
			for _, m := range ms {
				if m.State() == raft.Leader && m.Apply([]byte(text), 50*time.Millisecond).Error() == nil {
					acknowledged = append(acknowledged, text)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	f.net.Heal()
	propose(t, ms, "end", ids...)
	for id, m := range ms {
		until(t, id+" does not catch up", func() bool { return m.fsm.last() == "end" })
		have := map[string]bool{}
		for _, e := range m.fsm.entries {
			have[e] = true
		}
		for _, text := range acknowledged {
			if !have[text] {
				t.Errorf("%s has lost %q (seed %d)", id, text, seed)
			}
		}
	}
	t.Logf("%d acknowledged", len(acknowledged))
}

// A group whose token changes goes on under load, and nothing that it
// acknowledged is lost when the old token's connections end.
func TestGroupRotates(t *testing.T) {
	ids := []string{"a", "b", "c"}
	f := newFleet(t, ids...)
	text, err := os.ReadFile(f.token)
	if err != nil {
		t.Fatal(err)
	}
	old, fresh := strings.TrimSpace(string(text)), identity.NewToken()
	ms := map[string]member{}
	for _, id := range ids {
		ms[id] = f.member(id, ids...)
	}
	propose(t, ms, "begin", ids...)
	for n, step := range [][]string{{old, fresh}, {fresh, old}, {fresh}} {
		writeTokens(t, f.token, step...)
		for _, id := range ids {
			f.ports[id].id.Refresh()
			f.ports[id].distrust()
			propose(t, ms, fmt.Sprintf("step %d at %s", n, id), ids...)
		}
	}
	propose(t, ms, "end", ids...)
	for id, m := range ms {
		until(t, id+" does not catch up", func() bool { return m.fsm.last() == "end" })
	}
	for _, id := range ids {
		before := f.ports[id].Conns()
		f.ports[id].distrust()
		if after := f.ports[id].Conns(); after < before {
			t.Errorf("%s had %d connections of the old token left", id, before-after)
		}
	}
}
