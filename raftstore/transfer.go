package raftstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

const (
	// fitTime is how long a voter may take to say how it is before leadership is
	// handed to it.
	fitTime = 500 * time.Millisecond
	// fitLag is how many entries it may lack.
	fitLag = 1000
)

// transferHere hands the leadership of a group on, to one that can take it: while
// the library tries another, the group accepts nothing.
func (s *Store) transferHere(ctx context.Context, g *groups, which peer.Group, to string) error {
	if to == s.cfg.NodeID {
		return nil
	}
	l := g.changer(which)
	_, members := l.Members()
	if !isVoter(members, to) && to != "" {
		return fmt.Errorf("%w: no voter %q", ErrUnknownMember, to)
	}
	if countVoters(members) < 2 {
		return fmt.Errorf("%w: there is no other voter", ErrRefused)
	}
	to, err := s.successor(ctx, l, which, members, to)
	if err != nil {
		return err
	}
	before := l.Status().Term
	err = l.Transfer(ctx, to)
	switch now := l.Status(); {
	case errors.Is(err, group.ErrNoSuchMember):
		return fmt.Errorf("%w: no voter %q", ErrUnknownMember, to)
	case errors.Is(err, ErrAmbiguous) && now.State == stateLeader && now.Term == before && ctx.Err() == nil:
		return fmt.Errorf("%w: %s did not take over in time; %s leads as before", ErrRefused, to, s.cfg.NodeID)
	}
	return err
}

func isVoter(members []Member, id string) bool {
	for _, m := range members {
		if m.ID == id {
			return m.Voter
		}
	}
	return false
}

// successor is the voter that was asked for, or else the one with the most
// entries, if it answers and has caught up.
func (s *Store) successor(ctx context.Context, l changer, which peer.Group, members []Member, to string) (string, error) {
	wait := max(fitTime, 2*s.cfg.Heartbeat)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lags, errs := make([]uint64, len(members)), make([]error, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		if !m.Voter || m.ID == s.cfg.NodeID {
			continue
		}
		all.Go(func() { lags[i], errs[i] = s.lagOf(ctx, l, which, m) })
	}
	all.Wait()
	fittest, least := "", uint64(0)
	var fit []string
	var why error
	for i, m := range members {
		switch {
		case !m.Voter || m.ID == s.cfg.NodeID:
			continue
		case errs[i] == nil && lags[i] > fitLag:
			errs[i] = fmt.Errorf("it lacks %d entries", lags[i])
		}
		if errs[i] == nil {
			if fit = append(fit, m.ID); fittest == "" || lags[i] < least {
				fittest, least = m.ID, lags[i]
			}
		}
		if m.ID == to {
			why = errs[i]
		}
	}
	switch {
	case to == "" && fittest != "":
		return fittest, nil
	case to == "":
		return "", fmt.Errorf("%w: no other planner answers within %v and has caught up", ErrRefused, wait)
	case why == nil:
		return to, nil
	case len(fit) == 0:
		return "", fmt.Errorf("%w: %s cannot lead: %w; nor can any other planner now", ErrRefused, to, why)
	}
	return "", fmt.Errorf("%w: %s cannot lead: %w; healthy: %s", ErrRefused, to, why, strings.Join(fit, ", "))
}

// lagOf asks a voter how many entries of the group it lacks.
func (s *Store) lagOf(ctx context.Context, l changer, which peer.Group, m Member) (uint64, error) {
	n, err := s.askStatus(ctx, m.ID, m.Addr)
	switch {
	case ctx.Err() != nil:
		return 0, errors.New("it does not answer")
	case err != nil:
		return 0, err
	case n.Fault != "":
		return 0, fmt.Errorf("it has stopped: %s", n.Fault)
	}
	last := n.Core.Last
	if which == peer.Group_GROUP_PREFIX {
		last = n.Prefix.Last
	}
	ours := l.Status().Last
	return ours - min(last, ours), nil
}
