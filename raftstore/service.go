package raftstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// service answers other nodes.
type service struct {
	peer.UnimplementedPeerServer
	store *Store
}

// Hello notes who calls and tells who this node is, and whom else it has met. A
// second run of one node is refused while the first one lives.
func (v service) Hello(ctx context.Context, req *peer.HelloRequest) (*peer.HelloResponse, error) {
	s, n := v.store, req.GetNode()
	if caller, ok := transport.PeerID(ctx); !ok || caller != n.GetId() {
		return nil, status.Errorf(codes.PermissionDenied, "%q calls as %q", caller, n.GetId())
	}
	if ours := s.ClusterID(); ours != "" && n.GetClusterId() != "" && n.GetClusterId() != ours {
		s.fence(s.wasLeftBehind(n))
		return nil, s.refuseStranger(n.GetClusterId())
	}
	if err := s.Fault(); err != nil {
		// It lives and takes no part: nobody is to count on it, and another run of
		// it may take its place.
		return nil, status.Errorf(codes.Unavailable, "%s has stopped: %v", s.cfg.NodeID, err)
	}
	if err := s.refuseTwin(ctx, n); err != nil {
		return nil, status.Error(codes.AlreadyExists, err.Error())
	}
	if n.GetId() != s.cfg.NodeID {
		s.net.book.Meet(n, time.Now())
	}
	resp := &peer.HelloResponse{Node: s.self(), Removed: s.hasRemoved(ctx, n)}
	resp.Leader, _ = s.Leader()
	for _, k := range s.net.book.Nodes(time.Now().Add(-s.pace.lately)) {
		if k.GetId() != n.GetId() && k.GetVoter() {
			resp.Known = append(resp.Known, k)
		}
	}
	return resp, nil
}

// refuseTwin is an error if n is a second run of a node whose first one lives.
func (s *Store) refuseTwin(ctx context.Context, n *peer.Node) error {
	if n.GetId() == s.cfg.NodeID {
		// Two that start at once, and know nobody else, must not both give way.
		if n.GetIncarnation() == s.incarnation || (s.groups.Load() == nil && n.GetIncarnation() < s.incarnation) {
			return nil
		}
		return fmt.Errorf("%s runs at %s", n.GetId(), s.cfg.Advertise)
	}
	before, _, ok := s.net.book.Find(n.GetId())
	if !ok || before.GetIncarnation() == n.GetIncarnation() || before.GetAddr() == n.GetAddr() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.pace.twin)
	defer cancel()
	client, err := s.net.pool.Client(ctx, n.GetId(), before.GetAddr())
	if err != nil {
		return nil // it does not answer, so it does not run
	}
	resp, err := client.Hello(ctx, &peer.HelloRequest{Node: s.self()})
	if err == nil && resp.GetNode().GetIncarnation() == before.GetIncarnation() {
		return fmt.Errorf("%s runs at %s", n.GetId(), before.GetAddr())
	}
	return nil
}

// hasRemoved reports that this node leads, has made sure that it does, and that
// n, which believes to be in the cluster, is not a member. While the prefix group
// counts on it, it is not told: it would stop.
func (s *Store) hasRemoved(ctx context.Context, n *peer.Node) bool {
	g := s.groups.Load()
	if g == nil || n.GetClusterId() == "" || !g.core.Leading() || isMember(g, n.GetId()) {
		return false
	}
	if _, err := g.core.ReadIndex(ctx); err != nil {
		return false
	}
	return !isMember(g, n.GetId()) && !seated(g, n.GetId())
}

func isMember(g *groups, id string) bool {
	_, ok := memberOf(g, id)
	return ok
}

func memberOf(g *groups, id string) (Member, bool) {
	_, members := g.core.Members()
	for _, m := range members {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// Found promises to found a cluster, or does it.
func (v service) Found(ctx context.Context, req *peer.FoundRequest) (*peer.FoundResponse, error) {
	var founders []group.Server
	for _, f := range req.GetFounders() {
		founders = append(founders, group.Server{ID: f.GetId(), Addr: f.GetAddr()})
	}
	if len(founders) == 0 || len(founders) > maxFounders || req.GetClusterId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no founders, too many, or no cluster")
	}
	if caller, _ := transport.PeerID(ctx); caller != founders[0].ID {
		return nil, status.Errorf(codes.PermissionDenied, "%s is to found the cluster, not %s", founders[0].ID, caller)
	}
	err := v.store.agree(req.GetClusterId(), founders)
	if req.GetGo() && (err == nil || v.store.ClusterID() == req.GetClusterId()) {
		err = v.store.establish(ctx, req.GetClusterId(), founders)
	}
	resp := &peer.FoundResponse{Agreed: err == nil}
	if err != nil {
		resp.Reason = err.Error()
	}
	return resp, nil
}

// dedupeSpan is how many entries may lie between an entry and its repetition: the
// state machine remembers 4,096 request ids, so a repetition within half of that
// is certainly recognised.
const dedupeSpan = 2048

// remembered is an error when an entry that was first proposed after the entry
// since might be applied twice. A since of 0 means that it never was.
func remembered(last, since uint64) error {
	if since > 0 && last > since+dedupeSpan {
		return fmt.Errorf("%w: the first attempt may be forgotten", ErrAmbiguous)
	}
	return nil
}

// Propose proposes an entry of another node.
func (v service) Propose(ctx context.Context, req *peer.ProposeRequest) (*peer.ProposeResponse, error) {
	g := v.store.groups.Load()
	if g == nil {
		return &peer.ProposeResponse{Verdict: peer.Verdict_VERDICT_NOT_LEADER, Detail: "in no cluster yet"}, nil
	}
	var result []byte
	var err error
	switch req.GetGroup() {
	case peer.Group_GROUP_CORE:
		result, err = v.store.proposeHere(ctx, g, req)
	case peer.Group_GROUP_PREFIX:
		result, err = v.store.proposeFramesHere(ctx, g, req)
	case peer.Group_GROUP_UNSPECIFIED:
		err = fmt.Errorf("%w: group %v", planner.ErrInvalid, req.GetGroup())
	}
	if err != nil {
		return &peer.ProposeResponse{Verdict: verdictOf(err), Detail: err.Error()}, nil
	}
	return &peer.ProposeResponse{Verdict: peer.Verdict_VERDICT_DONE, Result: result}, nil
}

func (s *Store) proposeHere(ctx context.Context, g *groups, req *peer.ProposeRequest) ([]byte, error) {
	leads := s.awaitLead(ctx, g.core, &s.bells.core)
	if _, _, term := g.core.Leader(); !leads || term < req.GetTerm() {
		return nil, ErrNotLeader
	}
	if err := remembered(g.core.Status().Last, req.GetSince()); err != nil {
		return nil, err
	}
	switch err := s.machine.Check(req.GetEntry()); {
	case errors.Is(err, planner.ErrClock):
		return planner.AppendResult(nil, planner.Result{Code: planner.ClockOff}), nil
	case err != nil:
		return nil, err
	}
	res, err := g.core.Apply(ctx, req.GetEntry())
	if err != nil {
		return nil, err
	}
	return planner.AppendResult(nil, res), nil
}

func (s *Store) proposeFramesHere(ctx context.Context, g *groups, req *peer.ProposeRequest) ([]byte, error) {
	leads := s.awaitLead(ctx, g.prefix, &s.bells.prefix)
	if _, _, term := g.prefix.Leader(); !leads || term < req.GetTerm() {
		return nil, ErrNotLeader
	}
	if _, err := prefixlog.Check(req.GetEntry()); err != nil {
		return nil, err
	}
	outcomes, err := g.prefix.Apply(ctx, req.GetEntry())
	if err != nil {
		return nil, err
	}
	return resultOf(outcomes), nil
}

// verdictOf is what is known after err. Whatever is not known to have had no
// effect is ambiguous.
func verdictOf(err error) peer.Verdict {
	for _, known := range []struct {
		err     error
		verdict peer.Verdict
	}{
		{ErrHalfDone, peer.Verdict_VERDICT_HALF_DONE}, // whatever hindered the rest
		{ErrAmbiguous, peer.Verdict_VERDICT_AMBIGUOUS},
		{ErrNotLeader, peer.Verdict_VERDICT_NOT_LEADER},
		{group.ErrTransferring, peer.Verdict_VERDICT_NOT_LEADER},
		{group.ErrLowDisk, peer.Verdict_VERDICT_NOT_LEADER}, // leadership is being given up
		{ErrClosed, peer.Verdict_VERDICT_NOT_LEADER},
		{ErrNotReady, peer.Verdict_VERDICT_NOT_LEADER},
		{ErrBusy, peer.Verdict_VERDICT_BUSY},
		{group.ErrMembersChanged, peer.Verdict_VERDICT_BUSY},
		{ErrUnknownMember, peer.Verdict_VERDICT_UNKNOWN_MEMBER},
		{ErrRefused, peer.Verdict_VERDICT_REFUSED},
		{group.ErrChangeRefused, peer.Verdict_VERDICT_REFUSED},
		{ErrIDInUse, peer.Verdict_VERDICT_REFUSED},
		{planner.ErrInvalid, peer.Verdict_VERDICT_REFUSED},
		{planner.ErrLevel, peer.Verdict_VERDICT_REFUSED},
		{planner.ErrMalformed, peer.Verdict_VERDICT_REFUSED},
		{planner.ErrUnknownEntry, peer.Verdict_VERDICT_REFUSED},
		{prefixlog.ErrMalformed, peer.Verdict_VERDICT_REFUSED},
		{prefixlog.ErrUnknownEntry, peer.Verdict_VERDICT_REFUSED},
	} {
		if errors.Is(err, known.err) {
			return known.verdict
		}
	}
	return peer.Verdict_VERDICT_AMBIGUOUS
}

// errorOf is a verdict as the caller's error; nil for one that is done.
func errorOf(v peer.Verdict, detail string) error {
	var kind error
	switch v {
	case peer.Verdict_VERDICT_DONE:
		return nil
	case peer.Verdict_VERDICT_NOT_LEADER:
		kind = ErrNotLeader
	case peer.Verdict_VERDICT_BUSY:
		return busy("the leader says: " + detail) // what keeps it busy: not only proposals
	case peer.Verdict_VERDICT_REFUSED:
		kind = ErrRefused
	case peer.Verdict_VERDICT_UNKNOWN_MEMBER:
		kind = ErrUnknownMember
	case peer.Verdict_VERDICT_HALF_DONE:
		kind = ErrHalfDone
	case peer.Verdict_VERDICT_UNSPECIFIED, peer.Verdict_VERDICT_AMBIGUOUS:
		kind = ErrAmbiguous
	default:
		kind = ErrAmbiguous
	}
	return fmt.Errorf("%w: the leader says: %s", kind, detail)
}

// ReadIndex tells a reader what to wait for.
func (v service) ReadIndex(ctx context.Context, req *peer.ReadIndexRequest) (*peer.ReadIndexResponse, error) {
	g := v.store.groups.Load()
	if g == nil {
		return &peer.ReadIndexResponse{Verdict: peer.Verdict_VERDICT_NOT_LEADER, Detail: "in no cluster yet"}, nil
	}
	v.store.awaitLead(ctx, g.changer(req.GetGroup()), v.store.bell(req.GetGroup()))
	index, err := readIndexOf(ctx, g.of(req.GetGroup()), req)
	if err != nil {
		return &peer.ReadIndexResponse{Verdict: verdictOf(err), Detail: err.Error()}, nil
	}
	return &peer.ReadIndexResponse{Verdict: peer.Verdict_VERDICT_DONE, Index: index}, nil
}

// leader is the part of a group that answers readers.
type leader interface {
	Leading() bool
	Leader() (id, addr string, term uint64)
	ReadIndex(ctx context.Context) (uint64, error)
	Applied() uint64
}

// Status is where this node stands.
func (v service) Status(context.Context, *peer.StatusRequest) (*peer.StatusResponse, error) {
	b, err := json.Marshal(v.store.Status())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peer.StatusResponse{Json: b}, nil
}

// Change changes the members or hands over leadership.
func (v service) Change(ctx context.Context, req *peer.ChangeRequest) (*peer.ChangeResponse, error) {
	s := v.store
	caller, _ := transport.PeerID(ctx)
	err := s.changeHere(ctx, caller, req)
	if err != nil {
		return &peer.ChangeResponse{Verdict: verdictOf(err), Detail: err.Error()}, nil
	}
	return &peer.ChangeResponse{Verdict: peer.Verdict_VERDICT_DONE, ClusterId: s.ClusterID()}, nil
}
