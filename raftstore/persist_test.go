package raftstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/group"
)

// election is a group as far as callers see who leads it.
type election struct {
	changer
	state atomic.Pointer[lead]
}

type lead struct {
	id    string
	term  uint64
	here  bool // by Raft
	begun bool
}

func (e *election) Leader() (id, addr string, term uint64) {
	l := e.state.Load()
	return l.id, l.id, l.term
}

func (e *election) Leading() bool { return e.state.Load().begun }

func (e *election) Status() group.Status {
	if e.state.Load().here {
		return group.Status{State: stateLeader}
	}
	return group.Status{State: "Follower"}
}

func caller() *Store { return &Store{ctx: context.Background(), faulted: make(chan struct{})} }

// Whoever waits for a leader goes on in the moment in which there is another, and
// stays with the one that was asked as long as it leads.
func TestCallersFollowTheLeader(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then []lead
		want time.Duration // until the second attempt
	}{
		"another leads":             {[]lead{{id: "b", term: 2}}, 0},
		"nobody, then another":      {[]lead{{term: 2}, {id: "b", term: 2}}, time.Second},
		"nobody, then the same":     {[]lead{{term: 2}, {id: "a", term: 2}}, time.Second + retryPause},
		"a change that is none":     {[]lead{{id: "a", term: 1}, {id: "b", term: 2}}, time.Second},
		"the same in a later term":  {[]lead{{id: "a", term: 2}}, retryPause},
		"nobody any more, it hangs": {[]lead{{term: 2}}, longestCall},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, e, b := caller(), &election{}, &bell{}
				e.state.Store(&lead{id: "a", term: 1})
				tries := 0
				var changed time.Time
				go func() {
					for i, l := range c.then {
						time.Sleep(time.Second)
						if i == 0 {
							changed = time.Now()
						}
						e.state.Store(&l)
						b.ring()
					}
				}()
				err := s.persist(t.Context(), e, b, func(ctx context.Context) error {
					if tries++; tries > 1 {
						return nil
					}
					<-ctx.Done()
					return errors.Join(ErrAmbiguous, ctx.Err())
				})
				if c.want == longestCall {
					if !errors.Is(err, ErrAmbiguous) || tries != 1 {
						t.Errorf("%d tries, %v", tries, err)
					}
					return
				}
				// A ring that came before the retry makes it early, else firstRetry.
				if took := time.Since(changed); err != nil || tries != 2 || took < c.want || took > c.want+firstRetry {
					t.Errorf("%d tries, %v, after %v, want %v", tries, err, took, c.want)
				}
			})
		})
	}
}

// A caller that comes while the new leader prepares is kept, not sent away.
func TestCallersAreKeptUntilTheLeaderLeads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then lead
		want bool
		took time.Duration
	}{
		"it leads":         {lead{id: "a", here: true, begun: true}, true, 20 * time.Millisecond},
		"it loses":         {lead{id: "b"}, false, 20 * time.Millisecond},
		"it takes forever": {lead{id: "a", here: true}, false, leadTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, e, b := caller(), &election{}, &bell{}
				e.state.Store(&lead{id: "a", here: true})
				go func() {
					time.Sleep(20 * time.Millisecond)
					e.state.Store(&c.then)
					b.ring()
				}()
				begin := time.Now()
				if got := s.awaitLead(t.Context(), e, b); got != c.want || time.Since(begin) != c.took {
					t.Errorf("%v after %v", got, time.Since(begin))
				}
			})
		})
	}
}
