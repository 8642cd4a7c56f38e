package quorum

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// gateway is this process as a member of the cluster: what it writes goes to
// the leader by way of the peer port, as a gateway's writes do.
type gateway struct {
	store *raftstore.Store
	port  *transport.Port
	end   context.CancelFunc
	task  sync.WaitGroup
}

// joinAs makes this process a member and waits until it is ready.
func (p *planners) joinAs(ctx context.Context, id string) (_ *gateway, err error) {
	who, err := identity.Open(identity.Config{NodeID: id, TokenFile: p.token})
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gateway{port: transport.NewPort(transport.PortConfig{Listener: ln, Identity: who})}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.end = cancel
	g.task.Go(func() { who.Run(run) })
	var join []string
	for _, n := range p.nodes {
		join = append(join, n.peer)
	}
	g.store, err = raftstore.Open(ctx, raftstore.Config{
		NodeID: id, Nonvoter: true, Port: g.port, Advertise: ln.Addr().String(), Join: join, Registry: &measure.Registry{},
	})
	if err != nil {
		return nil, errors.Join(err, g.close(ctx))
	}
	ready, stop := context.WithTimeout(ctx, startTime)
	defer stop()
	if err := g.store.WaitReady(ready); err != nil {
		return nil, errors.Join(err, g.close(ctx))
	}
	return g, nil
}

// close leaves the cluster.
func (g *gateway) close(ctx context.Context) (err error) {
	if g.store != nil {
		err = errors.Join(g.store.Leave(ctx), g.store.Close(ctx))
	}
	err = errors.Join(err, g.port.Close())
	g.end()
	g.task.Wait()
	return err
}

// write brings a register of size bytes into force.
func (g *gateway) write(ctx context.Context, key string, size int) error {
	_, err := g.put(ctx, key, size)
	return err
}

// put is write, and gives the register's version.
func (g *gateway) put(ctx context.Context, key string, size int) (version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	res, err := g.store.Propose(ctx, planner.SetRegister{Key: key, Value: make([]byte, size)})
	return res.Version, errors.Join(err, res.Err())
}

// lost counts the registers that are older than acknowledged.
func (g *gateway) lost(ctx context.Context, acknowledged map[string]uint64) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if _, err := g.store.Read(ctx, raftstore.Linearizable()); err != nil {
		return 0, err
	}
	for key, version := range acknowledged {
		if now, _ := g.store.State().Register(key); now.Version < version {
			n++
		}
	}
	return n, nil
}

// writeTime bounds a write.
const writeTime = 10 * time.Second
