package raftstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// A task that hangs, on a disk perhaps, does not hold up Close beyond its
// deadline; the directory stays locked while it may still write there.
func TestCloseSaysWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), Registry: newRegistry(), Heartbeat: slower * 400 * time.Millisecond}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	s.tasks.Go("a task that hangs", func() { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a task that hangs") {
		t.Errorf("Close = %v", err)
	}
	if other, err := Open(t.Context(), cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("opened a directory in use: %v, %v", other, err)
	}
	close(release)
	for end := time.Now().Add(waitTime); ; time.Sleep(10 * time.Millisecond) {
		s, err := Open(t.Context(), cfg)
		if err == nil {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
		if !errors.Is(err, ErrInUse) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// stuckLog hangs what is written to it, on request.
type stuckLog struct {
	wal.Store
	stuck *atomic.Pointer[chan struct{}]
	hung  *atomic.Bool
}

func (l stuckLog) StoreLogs(entries []*raft.Log) error {
	if c := l.stuck.Load(); c != nil {
		l.hung.Store(true)
		<-*c
	}
	return l.Store.StoreLogs(entries)
}

// A gateway replaces a store that has stopped by another on the same port. That
// must work also when the old one does not come to its end.
func TestAnotherStoreOnThePort(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	planner := y.voters(1, nil)[0]
	var stuck atomic.Pointer[chan struct{}]
	var hung atomic.Bool
	g := y.node("gateway", func(c *Config) {
		c.Dir, c.Nonvoter, c.Join = "", true, []string{planner.addr}
		c.WriteDeadline = 5 * time.Minute
		c.Tuning.WrapLog = func(_ string, log wal.Store) wal.Store { return stuckLog{log, &stuck, &hung} }
	}).mustStart("")
	y.ready(g)

	release := make(chan struct{})
	stuck.Store(&release)
	propose(t, planner, "w1")
	y.until("the gateway hangs", hung.Load)
	old := g.Store
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := old.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v", err)
	}
	stuck.Store(nil)
	cfg := old.cfg
	cfg.Registry = newRegistry()
	var err error
	if g.Store, err = Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	y.ready(g)
	y.sees(g, "w1")
	close(release)
	y.until("the old one ends", func() bool { return old.tasks.left() == "" })
}
