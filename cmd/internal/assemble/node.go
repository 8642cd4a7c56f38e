package assemble

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/hugemem"
	"github.com/yardmaster/yardmaster/cmd/internal/quietnet"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/server/hub"
)

// Raft's timers, before cluster.raft-multiplier.
const (
	heartbeat = 300 * time.Millisecond
	lease     = 150 * time.Millisecond
)

// membership is how a process is a node of the cluster.
type membership struct {
	ID      string
	Dir     string // of a planner
	Voter   bool
	Admin   string // where its admin API answers
	Cluster config.Cluster
	Trust   vet.Trust // whose uploads a planner takes
}

// node is this process as a node: its peer port, and the store behind it.
type node struct {
	config   raftstore.Config
	live     atomic.Pointer[raftstore.Store] // never nil; replaced at gateways only
	port     *transport.Port
	identity *identity.Identity
	cancel   context.CancelFunc
	tasks    sync.WaitGroup
}

// store is the one that takes part in the cluster.
func (n *node) store() *raftstore.Store { return n.live.Load() }

// enter opens the peer port and the store. What comes of it in the cluster goes
// on behind it.
func enter(ctx context.Context, p Process, m membership) (*node, error) {
	who, err := identify(p, &m)
	if err != nil {
		return nil, err
	}
	ln, err := listen(ctx, peerListen(&m), "cluster.peer-listen")
	if err != nil {
		return nil, err
	}
	advertise, err := peerAddress(ln.Addr(), m.Cluster.PeerAdvertise)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	out := &node{identity: who}
	out.port = transport.NewPort(transport.PortConfig{
		Listener: quietnet.Listen(ln), Dialer: quietnet.Dial, Identity: who, Registry: p.Registry, Logger: p.Log,
	})
	times := m.Cluster.RaftMultiplier
	out.config = raftstore.Config{
		Dir: m.Dir, InMemory: m.Voter && m.Dir == "", NodeID: m.ID, Nonvoter: !m.Voter,
		Port: out.port, Advertise: advertise, Join: m.Cluster.Join, BootstrapExpect: m.Cluster.BootstrapExpect,
		ReapAfter: m.Cluster.ReapAfter, AdminAddr: m.Admin, Version: p.Version,
		Heartbeat: scaled(heartbeat, times), Lease: scaled(lease, times), Prefix: prefixOptions(),
		Window: func() uint64 { return uint64(max(p.Clock.Now().Unix(), 0)) / quota.WindowSeconds },
		Verify: func(d rollout.Digest, signature []byte) (string, error) {
			signer, _, err := m.Trust.Judge(d, signature)
			return signer, err
		},
		Registry: p.Registry, Logger: p.Log,
	}
	store, err := raftstore.Open(ctx, out.config)
	if err != nil {
		return nil, errors.Join(storeError(err, &m), out.port.Close())
	}
	out.live.Store(store)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	out.cancel = cancel
	out.tasks.Go(func() { who.Run(run) })
	return out, nil
}

func scaled(d time.Duration, times int) time.Duration { return d * time.Duration(times) }

// prefixOptions keep each index in huge pages of its own, as bench index measures
// it.
func prefixOptions() prefix.Options {
	var source hugemem.Source
	return prefix.Options{Memory: func(x *prefix.Index) prefix.Memory { return hugemem.New(&source, x) }}
}

// storeError names the setting that the store's fault is about.
func storeError(err error, m *membership) error {
	if m.Voter {
		return fmt.Errorf("planner.data-dir: %w", err)
	}
	return fmt.Errorf("gateway: %w", err)
}

// ErrNoToken means that a node has no secret to show to the others.
var ErrNoToken = errors.New("a node needs the cluster's token")

// identify reads or creates what the node proves itself by.
func identify(p Process, m *membership) (*identity.Identity, error) {
	c := identity.Config{NodeID: m.ID, Clock: p.Clock, Logger: p.Log}
	setting := "cluster.token-file"
	switch {
	case m.Cluster.Certificates():
		setting = "cluster.peer-cert"
		c.CertFile, c.KeyFile, c.CAFile = m.Cluster.PeerCert, m.Cluster.PeerKey, m.Cluster.PeerCA
	case m.Cluster.TokenFile != "":
		c.TokenFile = m.Cluster.TokenFile
	case m.Dir != "":
		c.TokenFile = filepath.Join(m.Dir, config.TokenName)
	default:
		return nil, fmt.Errorf("cluster.token-file: %w: copy a planner's file, %s in its data folder unless its --token-file names another, and name the copy with --token-file", ErrNoToken, config.TokenName)
	}
	// A node that goes to others must bring their token, not one of its own.
	c.Create = c.TokenFile != "" && m.Voter && len(m.Cluster.Join) == 0
	if c.Create && missing(c.TokenFile) {
		if err := fresh(m.Dir); err != nil {
			return nil, fmt.Errorf("cluster.token-file: %w", err)
		}
	}
	if c.Create && m.Cluster.TokenFile == "" {
		if err := makeFolder(filepath.Dir(c.TokenFile)); err != nil {
			return nil, fmt.Errorf("planner.data-dir: %w", err)
		}
	}
	who, err := identity.Open(c)
	if err != nil && !c.Create && c.TokenFile != "" && missing(c.TokenFile) {
		return nil, fmt.Errorf("%s: %w: there is no %s; copy the file of a member there, which is %s in its data folder unless its --token-file names another "+
			"(only for a cluster that is to be founded make one, for all, with `yardmaster cluster token new %s`)",
			setting, ErrNoToken, c.TokenFile, config.TokenName, c.TokenFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return who, nil
}

// fresh is an error for the data folder of a node that is in a cluster already: a
// new token would lock it out.
func fresh(dir string) error {
	if dir == "" {
		return nil
	}
	_, cluster, err := raftstore.Peek(dir)
	if err != nil || cluster == "" {
		return nil //nolint:nilerr // the store says more about a folder that it cannot read
	}
	return fmt.Errorf("%w: %s is of a member of cluster %s; name the cluster's token file with --token-file, "+
		"or copy it from another member (if no member has it any more, make another for all with `yardmaster cluster token new`)", ErrNoToken, dir, cluster)
}

func peerListen(m *membership) string {
	switch {
	case m.Cluster.PeerListen != "":
		return m.Cluster.PeerListen
	case m.Voter:
		return config.DefaultPeer
	default:
		return "127.0.0.1:0"
	}
}

// peerAddress is what others reach the peer port by. as is a host, host:port or
// empty.
func peerAddress(ln net.Addr, as string) (string, error) {
	own, port, err := net.SplitHostPort(ln.String())
	if err != nil {
		return "", fmt.Errorf("assemble: %w", err)
	}
	if _, _, err := net.SplitHostPort(as); err == nil {
		return as, nil
	}
	if as != "" {
		return net.JoinHostPort(as, port), nil
	}
	if ip := net.ParseIP(own); ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("cluster.peer-advertise: %w: the peer port listens on every address (%s)", ErrNoPeerHost, ln)
	}
	return net.JoinHostPort(own, port), nil
}

// ErrNoPeerHost means that others cannot know how to reach this node.
var ErrNoPeerHost = errors.New("say by which host name other members reach this node")

// gatewayLoad is this gateway's side of the load hub. own is the leader's side on
// this node, nil where there is none.
func (n *node) gatewayLoad(p Process, table *load.Table, view func() *fleet.View, own *hub.Server) (*hub.Link, error) {
	return hub.NewLink(hub.LinkConfig{
		Gateway: n.config.NodeID, Incarnation: uint64(p.Clock.Now().UnixNano()), Table: table, View: view,
		Traffic: func() []traffic.Totals { return traffic.Read(p.Registry) },
		Leader: func() (id, addr string, self bool) {
			id, addr = n.store().Leader()
			return id, addr, id == n.config.NodeID
		},
		Dial: func(ctx context.Context, id, addr string) (net.Conn, error) {
			conn, err := n.port.Dial(ctx, id, addr, transport.ProtoHub)
			if err != nil {
				return nil, err // not a nil *Conn in the interface
			}
			return conn, nil
		},
		Server: own, Registry: p.Registry, Clock: p.Clock, Logger: p.Log,
	})
}

// close ends the node within ctx. What the cluster is to do about it was said
// before.
func (n *node) close(ctx context.Context) error {
	n.cancel()
	n.tasks.Wait()
	return errors.Join(n.store().Close(ctx), n.port.Close())
}
