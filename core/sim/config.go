package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Pool is workers that are alike.
type Pool struct {
	Role    fleet.Role
	Workers int
	Engine  cost.EngineTime
	// KVTokens is what one worker's cache holds; default 300,000.
	KVTokens unit.Tokens
	// MaxRunning is the most requests that a worker computes at once; default 256.
	MaxRunning int
	// StepTokens is the most prompt tokens of a step; default 2048.
	StepTokens unit.Tokens
	// TokenBytes is the KV of one token, which a transfer moves; default 128 KiB.
	TokenBytes unit.Bytes
}

// Config sets up a replay. Zero fields take their defaults.
type Config struct {
	Pools []Pool
	Route route.Config // whose policy decides
	// Shadow scores each decision's columns as well: how often it would have chosen
	// another worker is counted. nil is none.
	Shadow route.Policy
	// Speed is how much faster than they were the requests come; default 1.
	Speed float64
	// Link is between any two workers; default 25 GB/s and 1 ms.
	Link cost.Link
	Seed uint64
	// Progress, if not nil, is told now and then how many requests have ended.
	Progress func(ended, of int)
}

const (
	usualKV      = 300_000
	usualRunning = 256
	usualStep    = 2048
	usualBytes   = 128 << 10
	// MaxWorkers is the most workers of all pools together.
	MaxWorkers = 1024
)

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var faults []error
	workers, serves := 0, false
	for i, p := range c.Pools {
		if p.Workers < 1 {
			faults = append(faults, fmt.Errorf("pool %d has no workers", i))
		}
		if p.Role.String() == "unknown" {
			faults = append(faults, fmt.Errorf("pool %d has no role", i))
		}
		if p.KVTokens < 0 || p.MaxRunning < 0 || p.StepTokens < 0 || p.TokenBytes < 0 {
			faults = append(faults, fmt.Errorf("pool %d has a negative bound", i))
		}
		if err := p.Engine.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("pool %d: %w", i, err))
		}
		workers += p.Workers
		serves = serves || p.Role&fleet.RoleDecode != 0
	}
	if !serves {
		faults = append(faults, errors.New("no pool generates: one of role decode or both is needed"))
	}
	if workers > MaxWorkers {
		faults = append(faults, fmt.Errorf("%d workers, of which %d are possible", workers, MaxWorkers))
	}
	if !(c.Speed >= 0 && c.Speed <= 1e6) {
		faults = append(faults, errors.New("the speed is not in [0, 1e6]"))
	}
	return errors.Join(append(faults, c.Route.Validate())...)
}

func (c Config) withDefaults() Config {
	if c.Speed == 0 {
		c.Speed = 1
	}
	if c.Link == (cost.Link{}) {
		c.Link = cost.Link{Setup: time.Millisecond, BytesPerSecond: 25e9, Efficiency: 1}
	}
	c.Route.Link, c.Route.Seed = c.Link, c.Seed
	pools := make([]Pool, len(c.Pools))
	for i, p := range c.Pools {
		if p.KVTokens == 0 {
			p.KVTokens = usualKV
		}
		if p.MaxRunning == 0 {
			p.MaxRunning = usualRunning
		}
		if p.StepTokens == 0 {
			p.StepTokens = usualStep
		}
		if p.TokenBytes == 0 {
			p.TokenBytes = usualBytes
		}
		pools[i] = p
	}
	c.Pools = pools
	return c
}
