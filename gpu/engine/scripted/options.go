package scripted

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Options describe an engine. The zero value of each field means its default.
type Options struct {
	// Model is the served base model, "scripted" by default.
	Model string
	// Adapters are LoRA adapters served beside it, with Model as their parent.
	Adapters []string
	// MaxContext bounds prompt plus output; default 8192 tokens.
	MaxContext unit.Tokens
	// BlockTokens is the size of a KV block; default 16.
	BlockTokens unit.Tokens
	// KVBlocks is the cache of each rank; default 4096.
	KVBlocks unit.Blocks
	// MaxRunning and MaxWaiting bound each rank's batch and queue; default 256
	// and 1024. A request beyond both gets 503.
	MaxRunning, MaxWaiting int
	// StepTokens is the token budget of a step (chunked prefill); default 8192.
	StepTokens int
	// Ranks is the number of data-parallel engines behind the one API; default 1.
	Ranks int
	// Timing is how long steps take; the zero value takes no time.
	Timing cost.EngineTime
	// Speed divides all modelled times; default 1.
	Speed float64
	// AnswerTokens is the length of a chat answer without max_tokens; default 32.
	AnswerTokens int
	// StopEvery, when positive, ends answers at random places, about one in every
	// so many tokens. Zero: only at the token limit.
	StopEvery int
	// HashSeed enters every block hash. Two engines with different seeds name the
	// same block differently, as some engines do by default.
	HashSeed uint64
	// Link is how long KV takes to move here from another worker.
	Link Link
	// Worker is the fleet's name for this engine.
	Worker fleet.WorkerID
	// Epoch is the incarnation that the fleet knows; see [Engine.SetEpoch].
	Epoch fleet.Epoch
	// Clock paces all delays; default clock.Real.
	Clock clock.Clock
	// Script is the behaviour at start; nil is an engine without faults. Its
	// engine section overrides the fields above.
	Script *Script
	// Records and RecordBytes bound what is remembered of requests: how many and
	// how many bytes of bodies in all; default 4096 and 64 MiB.
	Records     int
	RecordBytes unit.Bytes
	// MaxBody bounds a request body; default 64 MiB.
	MaxBody unit.Bytes
	// DrainTimeout bounds Restart's wait for requests; default 30 s.
	DrainTimeout time.Duration
}

// Link models the transfer of KV from a prefill to a decode worker.
type Link struct {
	// Setup is the cost of a transfer of any size.
	Setup time.Duration
	// TokenBytes is the KV of one token, BytesPerSecond the effective bandwidth.
	// Either at zero: bytes take no time.
	TokenBytes, BytesPerSecond unit.Bytes
	// Groups is the number of layer groups that move while the next is computed;
	// 0 or 1 moves everything after the prompt is done.
	Groups int
}

// Exposed is the part of moving tokens that a prefill of the given length does
// not hide: X + (G-1)·max(0, X-C) for G groups that take X to move and C to
// compute each.
func (l Link) Exposed(tokens unit.Tokens, prefill time.Duration) time.Duration {
	groups := float64(max(l.Groups, 1))
	var move float64 // seconds per group
	if l.BytesPerSecond > 0 {
		move = float64(tokens) * float64(l.TokenBytes) / float64(l.BytesPerSecond) / groups
	}
	compute := prefill.Seconds() / groups
	exposed := move + (groups-1)*max(0, move-compute)
	return l.Setup + time.Duration(exposed*float64(time.Second))
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	setDefault(&o.Model, "scripted")
	setDefault(&o.MaxContext, 8192)
	setDefault(&o.BlockTokens, 16)
	setDefault(&o.KVBlocks, 4096)
	setDefault(&o.MaxRunning, 256)
	setDefault(&o.MaxWaiting, 1024)
	setDefault(&o.StepTokens, 8192)
	setDefault(&o.Ranks, 1)
	setDefault(&o.Speed, 1)
	setDefault(&o.AnswerTokens, 32)
	setDefault(&o.Records, 4096)
	setDefault(&o.RecordBytes, 64<<20)
	setDefault(&o.MaxBody, 64<<20)
	setDefault(&o.DrainTimeout, 30*time.Second)
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Script == nil {
		o.Script = &Script{}
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every fault at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	for _, n := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"max context", int64(o.MaxContext), 1 << 24},
		{"block tokens", int64(o.BlockTokens), 1 << 16},
		{"KV blocks", int64(o.KVBlocks), 1 << 24},
		{"max running", int64(o.MaxRunning), 1 << 16},
		{"max waiting", int64(o.MaxWaiting), 1 << 20},
		{"step tokens", int64(o.StepTokens), 1 << 24},
		{"ranks", int64(o.Ranks), 256},
		{"answer tokens", int64(o.AnswerTokens), 1 << 24},
		{"records", int64(o.Records), 1 << 20},
		{"record bytes", int64(o.RecordBytes), 1 << 40},
		{"max body", int64(o.MaxBody), 1 << 32},
		{"drain timeout", int64(o.DrainTimeout), int64(24 * time.Hour)},
	} {
		fault(n.value < 1 || n.value > n.most, "%s is %d: must be 1 to %d", n.name, n.value, n.most)
	}
	fault(int64(o.MaxContext) > int64(o.KVBlocks)*int64(o.BlockTokens),
		"max context of %d tokens does not fit in %d blocks of %d", o.MaxContext, o.KVBlocks, o.BlockTokens)
	fault(o.MaxRunning > o.StepTokens, "max running of %d exceeds the %d tokens of a step", o.MaxRunning, o.StepTokens)
	fault(!(o.Speed > 0) || o.Speed > 1e9, "speed is %v: must be above 0", o.Speed)
	fault(o.StopEvery < 0, "stop every is negative")
	fault(o.Link.Setup < 0 || o.Link.TokenBytes < 0 || o.Link.BytesPerSecond < 0, "link times are negative")
	fault(o.Link.Groups < 0 || o.Link.Groups > 1024, "link groups is %d: must be 0 to 1024", o.Link.Groups)
	fault(slices.Contains(o.Adapters, "") || slices.Contains(o.Adapters, o.Model), "an adapter is unnamed or named like the model")
	fault(strings.ContainsAny(o.Model, "\n\""), "model name contains a quote or a line break")
	if err := o.Timing.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("timing: %w", err))
	}
	return errors.Join(faults...)
}

// models are the served names, the base model first.
func (o *Options) models() []string { return append([]string{o.Model}, o.Adapters...) }
