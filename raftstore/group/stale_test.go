package group

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// late is a network whose answers can be held back, by peer.
type late struct {
	*raft.InmemTransport
	hold atomic.Pointer[map[raft.ServerID]chan struct{}]
}

func (l *late) AppendEntries(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := l.InmemTransport.AppendEntries(id, addr, req, resp)
	if h := l.hold.Load(); h != nil {
		<-(*h)[id]
	}
	return err
}

// A leader is stopped, as by SIGSTOP, while its followers' answers are on their
// way. Another leader commits meanwhile. When the first goes on, the answers that
// it finds must not let a read pass.
func TestLateAnswersDoNotVerifyLeadership(t *testing.T) {
	for range 150 { // what the library does is a toss of a coin
		synctest.Test(t, func(t *testing.T) {
			nets := make([]*late, 3)
			members := cluster(t, 3, func(i int, c *Config) {
				nets[i] = &late{InmemTransport: c.Transport.(*raft.InmemTransport)}
				c.Transport, c.WriteDeadline = nets[i], time.Hour
			})
			defer closeAll(t, members)
			old := leader(t, members, 5*time.Second)
			i := slices.Index(members, old)

			disk := make(chan struct{})
			var answers []chan struct{}
			hold := map[raft.ServerID]chan struct{}{}
			for j := range members {
				if j != i {
					answers = append(answers, make(chan struct{}))
					hold[raft.ServerID(strconv.Itoa(j))] = answers[len(answers)-1]
				}
			}
			nets[i].hold.Store(&hold)
			time.Sleep(50 * time.Millisecond) // a heartbeat is on its way now
			old.store.hang.Store(&disk)       // what stands still is the main loop
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stuck := make(chan struct{})
			go func() {
				defer close(stuck)
				_, _ = old.Apply(ctx, []byte("x")) // whatever becomes of it
			}()
			synctest.Wait()
			isolate(members, i)
			next := leader(t, without(members, old), 10*time.Second)
			_, err := apply(t, next, "abc", time.Second)
			must(t, err)

			read := make(chan uint64, 1)
			go func() {
				index, _ := old.ReadIndex(ctx)
				read <- index
			}()
			synctest.Wait()
			old.store.hang.Store(nil)
			close(answers[0]) // the lease is fine
			synctest.Wait()
			close(disk)
			synctest.Wait()
			close(answers[1]) // and now the leadership is
			if index := <-read; index != 0 {
				t.Errorf("the old leader lets a read pass at entry %d, the new one is at %d", index, next.CommitIndex())
			}
			nets[i].hold.Store(nil)
			connect(members, i)
			<-stuck
		})
	}
}
