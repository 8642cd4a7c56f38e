package agent

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Config says who the worker is and whom to tell.
type Config struct {
	Planners []string // host:port of each planner's control port; tried in turn
	// Worker is what is registered. Epoch is ignored; Incarnation, if empty, is
	// drawn at random, which is right for one agent per process.
	Worker fleet.Worker
	// Stats reads the engine's present stats for a renewal. It must not block.
	// Nil reports nothing as known.
	Stats func() fleet.Stats
	// OnEpoch is told every change of the epoch, from Run's goroutine and before
	// Epoch shows it. Zero means that another worker has taken the id. It must
	// not block.
	OnEpoch func(fleet.Epoch)
	// OnDrain is called once, from Run's goroutine, when the planner wants the
	// worker to drain. It must not block; the answer to it is Agent.Drain.
	OnDrain func()

	TLS    *tls.Config  // nil speaks plain text
	Logger *slog.Logger // nil discards

	// MinBackoff and MaxBackoff bound the pause after a failed attempt; 0 means
	// 100 ms and 5 s. A planner's grace after a failover must exceed MaxBackoff.
	MinBackoff, MaxBackoff time.Duration
}

const (
	defaultMinBackoff = 100 * time.Millisecond
	defaultMaxBackoff = 5 * time.Second
	defaultRenewEvery = time.Second
	defaultLeaseTTL   = 3 * time.Second // until a planner says
	// leaseBackoff is the longest pause while the lease may still run.
	leaseBackoff = 200 * time.Millisecond
	// callTimeout bounds one attempt at one planner, a renewal's less: see
	// Agent.renewTimeout.
	callTimeout     = 2 * time.Second
	minRenewTimeout = 50 * time.Millisecond
	maxPlanners     = 64
)

func (c Config) withDefaults() Config {
	if c.Worker.Incarnation == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		c.Worker.Incarnation = hex.EncodeToString(b[:])
	}
	c.Worker.Epoch = 0
	if c.Stats == nil {
		c.Stats = func() fleet.Stats { return fleet.Stats{} }
	}
	if c.OnEpoch == nil {
		c.OnEpoch = func(fleet.Epoch) {}
	}
	if c.OnDrain == nil {
		c.OnDrain = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MinBackoff <= 0 {
		c.MinBackoff = defaultMinBackoff
	}
	if c.MaxBackoff <= 0 {
		c.MaxBackoff = defaultMaxBackoff
	}
	return c
}

func (c *Config) validate() error {
	var faults []error
	if len(c.Planners) == 0 || len(c.Planners) > maxPlanners {
		faults = append(faults, fmt.Errorf("%d planner addresses; 1 to %d are needed", len(c.Planners), maxPlanners))
	}
	if c.MinBackoff > c.MaxBackoff {
		faults = append(faults, errors.New("the least backoff exceeds the greatest"))
	}
	return errors.Join(append(faults, c.Worker.Validate())...)
}
