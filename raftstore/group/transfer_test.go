package group

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// stalling is a network in which calls to one peer can hang.
type stalling struct {
	*raft.InmemTransport
	hang atomic.Pointer[stall]
}

type stall struct {
	peer raft.ServerID
	end  chan struct{}
	met  atomic.Bool // a call hangs
}

func (s *stalling) AppendEntries(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if h := s.hang.Load(); h != nil && h.peer == id {
		h.met.Store(true)
		<-h.end
	}
	return s.InmemTransport.AppendEntries(id, addr, req, resp)
}

func (*stalling) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// hashicorp/raft#696, on real nodes: a second transfer to a peer that does not
// answer waits behind the first, and is never told when leadership is lost. The
// node then refuses every entry when it leads again. Whether it comes to that is
// the library's toss of a coin, so it is tossed until it does. Two goroutines of
// the library's never end then, which virtual time would not bear.
func TestTransferThatOutlivesLeadershipIsNoticed(t *testing.T) {
	t.Parallel()
	nets := make([]*stalling, 3)
	members := cluster(t, 3, func(i int, c *Config) {
		nets[i] = &stalling{InmemTransport: c.Transport.(*raft.InmemTransport)}
		c.Transport = nets[i]
		c.Heartbeat, c.WriteDeadline = 120*time.Millisecond, time.Minute
	})
	defer closeAll(t, members)
	for range 40 {
		lead := leader(t, members, 20*time.Second)
		i := slices.Index(members, lead)
		loseLeadershipInTransfer(t, members, nets[i], i)
		leader(t, without(members, lead), 10*time.Second)
		connect(members, i)
		if leadsAgain(t, members, lead, strconv.Itoa(i)) {
			continue
		}
		if !errors.Is(lead.Fault(), ErrTransferStuck) {
			t.Errorf("fault %v", lead.Fault())
		}
		_, err := apply(t, leader(t, without(members, lead), 10*time.Second), "x", 5*time.Second)
		must(t, err)
		return
	}
	t.Error("no transfer got stuck; perhaps the library was repaired")
}

// leadsAgain hands leadership to m until it leads, or stops with a fault.
func leadsAgain(t *testing.T, members []*node, m *node, id string) bool {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m.Leading() {
			return true
		}
		if m.Fault() != nil {
			return false
		}
		for _, other := range without(members, m) {
			if other.Leading() {
				_ = other.Transfer(within(t, time.Second), id) // tried again
			}
		}
	}
	t.Fatal("it neither leads again nor stops")
	return false
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// loseLeadershipInTransfer has member i try twice to hand over to a peer that
// hangs, and then cuts it off. On a busy machine it may come otherwise.
func loseLeadershipInTransfer(t *testing.T, members []*node, net *stalling, i int) {
	t.Helper()
	peer := strconv.Itoa((i + 1) % len(members))
	h := &stall{peer: raft.ServerID(peer), end: make(chan struct{})}
	net.hang.Store(h)
	eventually(t, "a call hangs", h.met.Load)
	_, _ = apply(t, members[i], "x", time.Second)
	for range 2 {
		_ = members[i].Transfer(within(t, 2*time.Second), peer)
	}
	isolate(members, i)
	eventually(t, "leadership is lost", func() bool { return members[i].raft.State() != raft.Leader })
	net.hang.Store(nil)
	close(h.end)
}
