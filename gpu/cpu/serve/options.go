package serve

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Engine computes requests; *batch.Engine does.
type Engine interface {
	Submit(ctx context.Context, req *batch.Request) (*batch.Stream, error)
}

// Legs moves KV between workers for disaggregated requests; *pd.Legs does.
type Legs interface {
	// Export prepares a prefill leg. It waits, bounded and until ctx ends, for the
	// destination to have reserved its blocks.
	Export(ctx context.Context, transferID uint64, peer engine.Peer, prompt []int32) (batch.Exporter, error)
	// Import prepares a decode leg. It does not wait. Cancelling the importer
	// before it was started tells the peer that nobody will fetch.
	Import(transferID uint64, peer engine.Peer) batch.Importer
	// Refuse says that a prefill leg was turned away before Export, so that the
	// decode worker need not wait for it.
	Refuse(transferID uint64, why transfer.Reason)
}

// Options shape a Handler.
type Options struct {
	// Model is the name that requests must use.
	Model string
	// MaxModelLen is the longest prompt plus answer, in tokens.
	MaxModelLen int
	Engine      Engine
	Tokenizer   *tokens.Tokenizer
	// Template renders chats. Without one, chats are refused.
	Template *tokens.Template
	// Legs is nil in a worker that takes no part in disaggregation.
	Legs Legs
	// Own is the worker's present incarnation. Nil means that it never has one.
	Own *engine.OwnEpoch
	// Version is what /version says.
	Version string
	// MaxBody bounds a request's body in bytes; 64 MiB.
	MaxBody int64
	// BodyTimeout bounds how long a body may take to arrive; 60 s. One that states
	// its length gets no more than 10 s and its size at 64 KiB/s.
	BodyTimeout time.Duration
	// RenderTimeout bounds the rendering of a chat template; 5 s.
	RenderTimeout time.Duration
	// WriteTimeout bounds how long one write to a client may block; 30 s. A
	// client that does not read for so long is gone.
	WriteTimeout time.Duration
	// Clock is the machine's.
	Clock clock.Clock
	// Log is for failures that are nobody's but ours; slog's default.
	Log *slog.Logger
}

// ErrOptions means that a handler cannot be made as wished.
var ErrOptions = errors.New("bad serve options")

// Validate reports every fault at once. Errors wrap ErrOptions.
func (o *Options) Validate() error {
	var faults []error
	for _, f := range []struct {
		bad  bool
		what string
	}{
		{o.Model == "", "no model name"},
		{o.MaxModelLen < 2, "a context of less than two tokens"},
		{o.Engine == nil, "no engine"},
		{o.Tokenizer == nil, "no tokenizer"},
		{o.MaxBody < 0 || o.BodyTimeout < 0 || o.RenderTimeout < 0 || o.WriteTimeout < 0, "a negative limit"},
	} {
		if f.bad {
			faults = append(faults, errors.Join(ErrOptions, errors.New(f.what)))
		}
	}
	return errors.Join(faults...)
}

func (o *Options) withDefaults() Options {
	d := *o
	if d.MaxBody == 0 {
		d.MaxBody = 64 << 20
	}
	if d.BodyTimeout == 0 {
		d.BodyTimeout = time.Minute
	}
	if d.RenderTimeout == 0 {
		d.RenderTimeout = 5 * time.Second
	}
	if d.WriteTimeout == 0 {
		d.WriteTimeout = 30 * time.Second
	}
	if d.Clock == nil {
		d.Clock = clock.Real{}
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Own == nil {
		d.Own = new(engine.OwnEpoch)
	}
	if d.Version == "" {
		d.Version = "unknown"
	}
	return d
}
