package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
	"github.com/yardmaster/yardmaster/server/hub"
)

// replica is the fleet of a gateway that follows the planners: everything that
// they know, in this process's memory, whether they are there or not.
type replica struct {
	node *node
	// seen is the store whose view counts. It is another than the node's only while
	// that one, after a fault, has not caught up again.
	seen  atomic.Pointer[raftstore.Store]
	admin *adminServer
	link  atomic.Pointer[hub.Link]   // nil before there is a gateway
	table atomic.Pointer[load.Table] // of this process's gateway; nil before it has one
	log   *slog.Logger
	end   func() // stops keep and waits for it

	process   Process
	governing *governor     // nil before it is started
	patience  time.Duration // strandedFor, but in tests
	hidden    func()        // ends the gauges of the view that counts; of keep's goroutine
}

// ErrNoPlanners means that a gateway was told of no planners.
var ErrNoPlanners = errors.New("a gateway joins planners: give --join HOST:PORT")

// StartJoinedGateway serves the fleet of the cluster that the settings name, as a
// member that does not vote. It returns when the API answers; it is ready once
// what the planners know has arrived, and stays so when they are gone.
func StartJoinedGateway(ctx context.Context, p Process, c *config.Config) (*Gateway, error) {
	if len(c.Cluster.Join) == 0 {
		return nil, fmt.Errorf("cluster.join: %w", ErrNoPlanners)
	}
	operators, err := listenAdmin(ctx, p, c.Gateway.Admin)
	if err != nil {
		return nil, err
	}
	node, err := enter(ctx, p, membership{
		ID: gatewayID(c), Admin: operators.address(), Cluster: c.Cluster,
	})
	if err != nil {
		operators.close()
		return nil, err
	}
	if len(c.Policy.TrustedKeys) > 0 || c.Policy.AllowUnsigned {
		p.Log.Warn("whose policies count is for the planners to say: policy.trusted-key and policy.allow-unsigned of a gateway that has joined them change nothing")
	}
	r := &replica{node: node, admin: operators, log: p.Log, process: p, patience: strandedFor}
	r.seen.Store(node.store())
	r.end = background(r.keep) //nolint:contextcheck // it outlives the start
	if r.governing, err = govern(ctx, p, c.Policy, "", byPlanners, bound{view: r.seen.Load, live: node.store}); err != nil {
		r.close() //nolint:contextcheck // ctx may be over, and leaving needs time of its own
		return nil, err
	}
	operators.serve(p, admin.Parts{
		Cluster: operator{store: node.store}, Workers: crew(p, r, operators.dispatcher), Policies: r.governing.operator(p, node.store),
		Quotas: quotaOperator{node.store},
	})
	g, err := StartGateway(ctx, p, c.Gateway, r)
	if err != nil {
		r.close() //nolint:contextcheck // ctx may be over, and leaving needs time of its own
		return nil, err
	}
	g.admin = operators // which ends with r
	g.after = append(g.after, r.close)
	return g, nil
}

// gatewayID names the gateway for this one life: its log is in memory, and a
// member that forgot what it had acknowledged is better another member. An
// operator's certificate has a fixed name, which then is the node's.
func gatewayID(c *config.Config) string {
	name := c.Gateway.ID
	if c.Cluster.Certificates() && name != "" {
		return name
	}
	if name == "" {
		host, port, _ := net.SplitHostPort(c.Gateway.Listen) // the setting is an address
		name = "gateway-" + port
		if ip := net.ParseIP(host); host != "" && host != "localhost" && (ip == nil || !ip.IsLoopback() && !ip.IsUnspecified()) {
			name = "gateway-" + nodeWord(host) + "-" + port
		}
	}
	return name[:min(len(name), 50)] + "-" + raftstore.NewRequestID().String()[:6]
}

// nodeWord is a host as it can stand in a node's name.
func nodeWord(host string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '-'
		}
	}, host)
}

// View is the fleet.
func (r *replica) View() *fleet.View { return r.seen.Load().View() }

// Samples is what workers last said of themselves.
func (r *replica) Samples() *fleet.Samples {
	if link := r.link.Load(); link != nil {
		return link.Samples()
	}
	return nil
}

// Events is the index of what workers said they hold.
func (r *replica) Events() *prefix.Table { return r.seen.Load().Prefix().Table() }

func (r *replica) quotas() *raftstore.Store { return r.node.store() }

func (r *replica) governor() *governor { return r.governing }

func (r *replica) ready() error { return r.seen.Load().Ready() }

func (r *replica) share(p Process, table *load.Table) (link *hub.Link, err error) {
	r.table.Store(table)
	link, err = r.node.gatewayLoad(p, table, r.View, nil)
	r.link.Store(link)
	return link, err
}

func (r *replica) operate(d *dispatch.Dispatcher) bool {
	if r.admin != nil {
		r.admin.gateway.Store(d)
	}
	return true
}

// leaveTime bounds how long a gateway tries to tell the planners that it goes. They
// would find out by themselves.
const leaveTime = time.Second

// close leaves the cluster and ends the node.
func (r *replica) close() {
	r.governing.end()
	r.end()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if err := r.node.store().Leave(ctx); err != nil {
		r.log.Info("left without telling the planners, who will notice", "error", err)
	}
	r.admin.close()
	end, stop := context.WithTimeout(context.Background(), leaveTime)
	defer stop()
	if err := r.node.close(end); err != nil {
		r.log.Warn("the node did not end cleanly", "error", err)
	}
}
