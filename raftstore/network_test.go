package raftstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// A caller that sets no deadline, or a far one, holds no handler for long.
func TestHandlersAreBounded(t *testing.T) {
	t.Parallel()
	s := openLeading(t, testConfig(""))
	for _, method := range []string{peer.Peer_Hello_FullMethodName, peer.Peer_Found_FullMethodName, peer.Peer_Change_FullMethodName} {
		_, err := s.knowCaller(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > longestCall {
				t.Errorf("%s: until %v, %v", method, end, ok)
			}
			return nil, nil
		})
		if err != nil && method != peer.Peer_Change_FullMethodName {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// Greetings are heard by several goroutines. One of them complains.
func TestForeignAddressesAreToldOnce(t *testing.T) {
	t.Parallel()
	h := newHome()
	var told atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 2 * maxHints {
				if h.isNews(fmt.Sprint("a", i)) {
					told.Add(1)
				}
			}
		})
	}
	all.Wait()
	if told.Load() != maxHints {
		t.Errorf("told %d times, want %d", told.Load(), maxHints)
	}
}

// What another node hands on is looked at before it is in the log for ever: an
// entry that nobody can apply would stop every member.
func TestForwardedEntriesAreChecked(t *testing.T) {
	t.Parallel()
	s := openLeading(t, testConfig(""))
	if err := s.waitUntil(t.Context(), "no leadership", s.LeadingPrefix); err != nil {
		t.Fatal(err)
	}
	for _, which := range []peer.Group{peer.Group_GROUP_CORE, peer.Group_GROUP_PREFIX} {
		for _, entry := range [][]byte{nil, {0}, {1}, {0xff, 0xff}, []byte("no entry at all")} {
			resp, err := service{store: s}.Propose(t.Context(), &peer.ProposeRequest{Group: which, Entry: entry})
			if err != nil || resp.GetVerdict() != peer.Verdict_VERDICT_REFUSED {
				t.Errorf("%v, %q: %v, %v", which, entry, resp, err)
			}
		}
		if s.Fault() != nil {
			t.Fatalf("%v: %v", which, s.Fault())
		}
	}
}
