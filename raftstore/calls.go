package raftstore

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/call"
	"github.com/yardmaster/yardmaster/raftstore/peer"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
)

// The calls of package call, and the methods of peer.proto whose messages they carry.
// Like these they are not handed on.
const (
	callPropose   call.Kind = 1
	callReadIndex call.Kind = 2
)

// ask calls the leader, as far as one is known. Errors wrap call.ErrNotServed,
// ErrNoLeader or ErrBusy when nothing was done, and call.ErrLost when that is not
// known.
func (s *Store) ask(ctx context.Context, id, addr string, kind call.Kind, req, resp proto.Message) error {
	if id == "" || id == s.cfg.NodeID || s.net == nil {
		return ErrNoLeader
	}
	if s.cfg.noCalls {
		return call.ErrNotServed
	}
	body, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	to := call.Target{ID: id, Addr: s.whereIs(id, addr)}
	body, err = s.net.calls.Call(ctx, to, call.Request{Kind: kind, Cluster: s.ClusterID(), Body: body})
	switch {
	case err == nil:
	case errors.Is(err, call.ErrNotServed), errors.Is(err, call.ErrLost):
		return err
	case errors.Is(err, call.ErrBusy):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	default:
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	if err := proto.Unmarshal(body, resp); err != nil {
		return fmt.Errorf("%w: %w", call.ErrLost, err)
	}
	return nil
}

// take takes a call of another node in. It must not block.
func (s *Store) take(r *call.Incoming) {
	if ours := s.ClusterID(); r.Cluster != ours {
		r.Answer(call.Refused, fmt.Appendf(nil, "you are of cluster %q, this node is of %q", r.Cluster, ours))
		return
	}
	switch r.Kind {
	case callPropose:
		req := new(peer.ProposeRequest)
		if err := proto.Unmarshal(r.Body, req); err != nil {
			r.Answer(call.Refused, []byte("malformed request"))
			return
		}
		if s.proposeAtOnce(r, req) {
			return
		}
		r.Go(func(ctx context.Context) {
			resp, err := service{store: s}.Propose(ctx, req)
			reply(r, resp, err)
		})
	case callReadIndex:
		req := new(peer.ReadIndexRequest)
		if err := proto.Unmarshal(r.Body, req); err != nil {
			r.Answer(call.Refused, []byte("malformed request"))
			return
		}
		r.Go(func(ctx context.Context) {
			resp, err := service{store: s}.ReadIndex(ctx, req)
			reply(r, resp, err)
		})
	default:
		r.Answer(call.Refused, fmt.Appendf(nil, "calls of kind %d are not known", r.Kind))
	}
}

// reply answers a call with what a method of the service returned.
func reply(r *call.Incoming, resp proto.Message, err error) {
	body, failed := proto.Marshal(resp)
	if err = errors.Join(err, failed); err != nil {
		// The methods never fail. Whatever it was, it is in doubt.
		body, _ = proto.Marshal(&peer.ProposeResponse{Verdict: peer.Verdict_VERDICT_AMBIGUOUS, Detail: err.Error()})
	}
	r.Answer(call.Done, body)
}

// answerProposal answers a proposal.
func answerProposal(r *call.Incoming, result []byte, err error) {
	resp := &peer.ProposeResponse{Verdict: peer.Verdict_VERDICT_DONE, Result: result}
	if err != nil {
		resp = &peer.ProposeResponse{Verdict: verdictOf(err), Detail: err.Error()}
	}
	reply(r, resp, nil)
}

// proposeAtOnce proposes an entry without waiting for anything, and answers when it
// is applied. It reports false, and has done nothing, where it would have to wait or
// refuse.
func (s *Store) proposeAtOnce(r *call.Incoming, req *peer.ProposeRequest) bool {
	g := s.groups.Load()
	if g == nil {
		return false
	}
	switch req.GetGroup() {
	case peer.Group_GROUP_CORE:
		_, _, term := g.core.Leader()
		ready := g.core.Leading() && term >= req.GetTerm() && remembered(g.core.Status().Last, req.GetSince()) == nil
		return ready && s.machine.Check(req.GetEntry()) == nil && nil == g.core.Start(req.GetEntry(), func(res planner.Result, err error) {
			answerProposal(r, planner.AppendResult(nil, res), err)
		})
	case peer.Group_GROUP_PREFIX:
		if _, _, term := g.prefix.Leader(); !g.prefix.Leading() || term < req.GetTerm() {
			return false
		}
		if _, err := prefixlog.Check(req.GetEntry()); err != nil {
			return false
		}
		return nil == g.prefix.Start(req.GetEntry(), func(outcomes []prefix.Outcome, err error) {
			answerProposal(r, resultOf(outcomes), err)
		})
	case peer.Group_GROUP_UNSPECIFIED:
	}
	return false
}

// resultOf is what frames got, a byte for each.
func resultOf(outcomes []prefix.Outcome) []byte {
	result := make([]byte, len(outcomes))
	for i, o := range outcomes {
		result[i] = byte(o)
	}
	return result
}
