package assemble

import (
	"sync"

	"google.golang.org/grpc"

	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// protoControl is what planners speak to hand workers' calls on to the leader.
const protoControl = "ym-control/1"

// leaderControl finds the control service of the planner that leads.
type leaderControl struct {
	store *raftstore.Store
	port  *transport.Port

	mu       sync.Mutex
	id, addr string
	conn     *grpc.ClientConn // nil before the first
}

// client is the leader's service; false while this node leads or nobody does.
func (l *leaderControl) client() (rpc.ControlClient, bool) {
	id, addr := l.store.Leader()
	if id == "" || addr == "" || id == l.store.NodeID() {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.id != id || l.addr != addr {
		conn, err := grpc.NewClient("passthrough:///"+addr, transport.GRPCDialOptions(l.port, id, protoControl)...)
		if err != nil {
			return nil, false // the address makes no sense
		}
		l.drop()
		l.conn, l.id, l.addr = conn, id, addr
	}
	return rpc.NewControlClient(l.conn), true
}

// drop ends the connection to a leader of before, and the calls that wait on it.
func (l *leaderControl) drop() {
	if l.conn != nil {
		_ = l.conn.Close() // nothing is left to lose
		l.conn = nil
	}
}

// close ends the connection.
func (l *leaderControl) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}
