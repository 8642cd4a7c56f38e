package raftstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// crew is the goroutines of a store, by what they do: whoever waits for their end
// in vain can say for which.
type crew struct {
	all  sync.WaitGroup
	mu   sync.Mutex
	busy map[string]int
}

// Go runs a task on a goroutine of its own.
func (c *crew) Go(name string, task func()) {
	c.count(name, 1)
	c.all.Go(func() {
		defer c.count(name, -1)
		task()
	})
}

func (c *crew) count(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy == nil {
		c.busy = map[string]int{}
	}
	if c.busy[name] += n; c.busy[name] == 0 {
		delete(c.busy, name)
	}
}

// left says what still runs.
func (c *crew) left() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.busy)), ", ")
}

// Close stops the node within ctx, after it has handed over leadership, and
// releases the directory. View still works. What does not end in time is left
// behind, holds the directory until it has, and is named by the error; in any case
// the port is free for another store. A second call returns what the first did.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = s.shutdown(ctx) })
	return s.closed
}

func (s *Store) shutdown(ctx context.Context) error {
	if s.net != nil && s.Fault() == nil && s.groups.Load() != nil {
		brief, cancel := context.WithTimeout(ctx, handOver)
		_ = s.StepDown(brief) // the others elect a leader then
		cancel()
	}
	s.cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.wind()
	}()
	select {
	case <-ended:
		return errors.Join(s.closeGroups(ctx), s.release())
	case <-ctx.Done():
	}
	late := fmt.Errorf("raftstore: %s did not end: %w", s.tasks.left(), ctx.Err())
	err := errors.Join(late, s.closeGroups(ctx))
	go func() { // and the groups, if one of the tasks was about to open them
		<-ended
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		_ = errors.Join(s.closeGroups(bound), s.release()) // nobody is there to be told
	}()
	return err
}

// wind waits for the end of what runs beside the groups.
func (s *Store) wind() {
	if s.net != nil {
		s.tasks.Go("the service for peers", s.net.close)
	}
	s.tasks.all.Wait()
	if s.blobs != nil {
		s.tasks.Go("the shelf of policies", s.blobs.shelf.Close)
	}
	if g := s.groups.Load(); g != nil {
		s.tasks.Go("the batcher of frames", g.frames.Close)
	}
	s.tasks.all.Wait()
}

// closeGroups ends the groups within ctx, and their transports in any case.
func (s *Store) closeGroups(ctx context.Context) error {
	g := s.groups.Load()
	if g == nil {
		return nil
	}
	var both sync.WaitGroup
	var errs [2]error
	both.Go(func() { errs[0] = g.core.Close(ctx) })
	both.Go(func() { errs[1] = g.prefix.Close(ctx) })
	both.Wait()
	return errors.Join(errs[:]...)
}

// release gives the folders back.
func (s *Store) release() error { return errors.Join(s.dir.close(), s.spool.drop()) }
