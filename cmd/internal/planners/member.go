package planners

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// Member is this process as a member of the cluster, without a vote. What it
// writes goes to the leader by way of the peer port, as a gateway's writes do.
type Member struct {
	*raftstore.Store
	Port *transport.Port
	end  context.CancelFunc
	task sync.WaitGroup
}

// Join makes this process a member and waits until it is ready. The caller ends
// it with Leave.
func (c *Cluster) Join(ctx context.Context, id string) (*Member, error) {
	who, err := identity.Open(identity.Config{NodeID: id, TokenFile: c.token})
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(c.host, "0"))
	if err != nil {
		return nil, err
	}
	m := &Member{Port: transport.NewPort(transport.PortConfig{Listener: ln, Identity: who})}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.end = cancel
	m.task.Go(func() { who.Run(run) })
	m.Store, err = raftstore.Open(ctx, raftstore.Config{
		NodeID: id, Nonvoter: true, Port: m.Port, Advertise: ln.Addr().String(), Join: c.Peers(), Registry: &measure.Registry{},
	})
	if err != nil {
		return nil, errors.Join(err, m.Leave(ctx))
	}
	ready, stop := context.WithTimeout(ctx, StartTime)
	defer stop()
	if err := m.WaitReady(ready); err != nil {
		return nil, errors.Join(err, m.Leave(ctx))
	}
	return m, nil
}

// Leave ends the membership.
func (m *Member) Leave(ctx context.Context) (err error) {
	if m.Store != nil {
		err = errors.Join(m.Store.Leave(ctx), m.Close(ctx))
	}
	err = errors.Join(err, m.Port.Close())
	m.end()
	m.task.Wait()
	return err
}
