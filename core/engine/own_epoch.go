package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// RegistrationTime bounds how long a worker holds what is meant for an epoch
// that it has not heard of yet.
const RegistrationTime = time.Second

// OwnEpoch is the epoch that a worker knows itself by. Gateways may hear of a new one
// before the worker does, since the registration's answer and the new view travel
// apart: what is meant for a later epoch than the worker knows is therefore not
// refused at once. The zero value has no epoch. It is safe for concurrent use.
type OwnEpoch struct {
	epoch atomic.Uint64
	mu    sync.Mutex
	news  chan struct{} // closed at the next change; nil while nobody waits
}

// Epoch is the present one, 0 while there is none.
func (o *OwnEpoch) Epoch() fleet.Epoch { return fleet.Epoch(o.epoch.Load()) }

// Set changes it.
func (o *OwnEpoch) Set(e fleet.Epoch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch.Store(uint64(e))
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
}

// Is reports whether meant is the worker's epoch. Of a later one it waits to
// hear, until ctx ends or RegistrationTime is over.
func (o *OwnEpoch) Is(ctx context.Context, meant fleet.Epoch) bool {
	if now := o.Epoch(); meant <= now {
		return meant == now
	}
	ctx, stop := context.WithTimeout(ctx, RegistrationTime)
	defer stop()
	for {
		now, news := o.watch()
		if meant <= now {
			return meant == now
		}
		select {
		case <-news:
		case <-ctx.Done():
			return false
		}
	}
}

// watch is the present epoch, and what is closed when it changes.
func (o *OwnEpoch) watch() (fleet.Epoch, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news == nil {
		o.news = make(chan struct{})
	}
	return o.Epoch(), o.news
}
