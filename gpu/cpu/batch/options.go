package batch

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
)

// Options shape an engine. Zero fields mean their defaults.
type Options struct {
	// KVBlocks is the number of KV blocks. It has no default.
	KVBlocks int
	// BlockTokens is the tokens of a block; 16.
	BlockTokens int
	// MaxRunning bounds the requests computed at once; 32.
	MaxRunning int
	// TokenBudget bounds the tokens computed in one step, and with them how long
	// a prompt may keep a running stream from its next token; 256. It is at least
	// MaxRunning.
	TokenBudget int
	// MaxContext bounds prompt plus output of a request, in tokens; what the KV
	// blocks hold. It never exceeds that.
	MaxContext int
	// MaxWaiting bounds the accepted requests beyond MaxRunning; 256.
	MaxWaiting int
	// StreamBuffer is the events a stream holds before its request pauses; 64.
	StreamBuffer int
	// ImportTimeout ends a transfer that neither succeeds nor fails; 2 minutes.
	// The prompt is then computed here.
	ImportTimeout time.Duration
	// HashSeed starts the chains of block hashes.
	HashSeed uint64
	// Registry counts what happens; a private one.
	Registry *measure.Registry
	// Clock is the machine's.
	Clock clock.Clock
}

// ErrOptions means that an engine cannot be made as wished.
var ErrOptions = errors.New("bad engine options")

// Validate reports every fault at once. Errors wrap ErrOptions.
func (o *Options) Validate() error {
	d := o.withDefaults()
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
		}
	}
	fault(d.KVBlocks <= 0, "%d KV blocks", d.KVBlocks)
	fault(d.BlockTokens <= 0, "%d tokens a block", d.BlockTokens)
	fault(d.MaxRunning <= 0, "%d running requests", d.MaxRunning)
	fault(d.TokenBudget < d.MaxRunning, "a token budget of %d is less than the %d running requests", d.TokenBudget, d.MaxRunning)
	fault(d.MaxContext < 2, "a context of %d tokens", d.MaxContext)
	fault(d.MaxWaiting < 0, "%d waiting requests", d.MaxWaiting)
	fault(d.StreamBuffer <= 0, "a stream buffer of %d events", d.StreamBuffer)
	fault(d.ImportTimeout <= 0, "an import timeout of %v", d.ImportTimeout)
	return errors.Join(faults...)
}

func (o *Options) withDefaults() Options {
	d := *o
	for _, f := range []struct {
		field *int
		value int
	}{
		{&d.BlockTokens, 16}, {&d.MaxRunning, 32}, {&d.MaxWaiting, 256}, {&d.StreamBuffer, 64},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	if d.TokenBudget == 0 {
		d.TokenBudget = max(256, d.MaxRunning)
	}
	if held := d.KVBlocks * d.BlockTokens; d.MaxContext == 0 || d.MaxContext > held {
		d.MaxContext = held
	}
	if d.ImportTimeout == 0 {
		d.ImportTimeout = 2 * time.Minute
	}
	if d.Registry == nil {
		d.Registry = &measure.Registry{}
	}
	if d.Clock == nil {
		d.Clock = clock.Real{}
	}
	return d
}
