package planner

import (
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// MemberRole says what a node is in the cluster. Its numbers are for ever.
type MemberRole uint8

// The roles of members.
const (
	MemberPlanner MemberRole = 1 // votes
	MemberGateway MemberRole = 2 // follows
)

// String is the role's name in the API and in logs.
func (r MemberRole) String() string {
	switch r {
	case MemberPlanner:
		return "planner"
	case MemberGateway:
		return "gateway"
	}
	return "unknown"
}

// Member is what a node says of itself. Who votes is decided by the groups'
// configurations, not here.
type Member struct {
	ID          string
	Role        MemberRole
	PeerAddr    string // host:port of its one TLS port
	AdminAddr   string // of its admin API; empty when it has none for others
	Version     string // its release
	MaxLevel    uint32 // the highest feature level it understands, 1 at least
	Incarnation string // of this start of the node
	Index       uint64 // Raft index of the record
}

// Validate reports every fault of a record at once.
func (m *Member) Validate() error {
	faults := []error{fleet.CheckNodeID(m.ID)}
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, errors.New(text))
		}
	}
	fault(m.Role != MemberPlanner && m.Role != MemberGateway, "member is neither planner nor gateway")
	fault(len(m.PeerAddr) > maxAddress || len(m.AdminAddr) > maxAddress, "an address is too long")
	fault(len(m.Version) > maxName || len(m.Incarnation) > maxName, "version or incarnation is too long")
	fault(m.MaxLevel == 0, "highest feature level is missing")
	return errors.Join(faults...)
}

// sound is the rule of the entry: what Apply takes.
func (m *Member) sound() bool {
	return m.ID != "" && len(m.ID) <= maxNodeID && m.Role != 0 && m.MaxLevel != 0 &&
		len(m.PeerAddr) <= maxAddress && len(m.AdminAddr) <= maxAddress &&
		len(m.Version) <= maxName && len(m.Incarnation) <= maxName
}

// Members lists the nodes that have told of themselves, by id.
func (m *Machine) Members() []Member {
	rows := m.members.Load().Rows()
	out := make([]Member, len(rows))
	for i, row := range rows {
		out[i] = *row.Value
	}
	return out
}

// Member returns one node's record, and whether there is one.
func (m *Machine) Member(id string) (Member, bool) { return value(*m.members.Load(), id) }

func (m *Machine) putMember(index uint64, c PutMember) Result {
	members := *m.members.Load()
	old, exists := members.Get(c.ID)
	switch {
	case !c.sound():
		return Result{Code: Refused}
	case !exists && members.Len() >= MaxMembers:
		return Result{Code: Full}
	}
	next := c.Member
	if exists {
		if next.Index = old.Index; next == *old { // a node that says it again
			return Result{Version: old.Index}
		}
	}
	next.Index = index
	publish(&m.members, members.With(next.ID, &next))
	return Result{Version: index, Changed: true}
}

func (m *Machine) dropMember(c DropMember) Result {
	members := *m.members.Load()
	old, exists := members.Get(c.ID)
	switch {
	case !exists:
		return Result{}
	case c.Incarnation != "" && c.Incarnation != old.Incarnation:
		return Result{Code: Conflict, Version: old.Index}
	}
	publish(&m.members, members.Without(c.ID))
	return Result{Changed: true}
}

func fromMember(m *Member) *control.Member {
	return &control.Member{
		Id: m.ID, Role: uint32(m.Role), PeerAddr: m.PeerAddr, AdminAddr: m.AdminAddr, Version: m.Version,
		MaxLevel: m.MaxLevel, Incarnation: m.Incarnation, Index: m.Index,
	}
}

func toMember(m *control.Member) (Member, error) {
	if m.GetRole() > uint32(^MemberRole(0)) {
		return Member{}, fmt.Errorf("%w: role %d of a member", ErrMalformed, m.GetRole())
	}
	return Member{
		ID: m.GetId(), Role: MemberRole(m.GetRole()), PeerAddr: m.GetPeerAddr(), AdminAddr: m.GetAdminAddr(), Version: m.GetVersion(),
		MaxLevel: m.GetMaxLevel(), Incarnation: m.GetIncarnation(), Index: m.GetIndex(),
	}, nil
}

func value[V any](t table.Table[*V], key string) (v V, ok bool) {
	p, ok := t.Get(key)
	if ok {
		v = *p
	}
	return v, ok
}
