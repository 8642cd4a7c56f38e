package collect

import (
	"context"

	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// Source reads an engine's events.
type Source interface {
	// Run hands what the engine holds, and then every change, to t until ctx
	// ends. It returns ctx's error or why it cannot go on.
	Run(ctx context.Context, t *Translator) error
}

// CPU reads the CPU engine's cache.
type CPU struct{ Cache *kv.Cache }

// Run follows the cache. It cannot fail: a reader that lags takes a dump.
func (s CPU) Run(ctx context.Context, t *Translator) error {
	var batch []kv.Event
	for {
		last, dump := s.Cache.Dump()
		sub := s.Cache.Subscribe(last + 1)
		t.Apply(append([]Event{{Kind: Cleared}}, translated(dump)...)...)
		gap, err := false, error(nil)
		for !gap && err == nil {
			if batch, gap, err = sub.Next(ctx, batch[:0]); !gap {
				t.Apply(translated(batch)...)
			}
		}
		sub.Close()
		if err != nil {
			return err
		}
	}
}

func translated(events []kv.Event) []Event {
	out := make([]Event, 0, len(events))
	for i := range events {
		e := &events[i]
		hashes := make([]uint64, len(e.Hashes))
		for k, h := range e.Hashes {
			hashes[k] = uint64(h)
		}
		out = append(out, Event{
			Kind: kinds[e.Kind], Blocks: hashes, Parent: uint64(e.Parent), Root: e.First, Salt: e.Salt,
			Tokens: e.Tokens, BlockTokens: e.BlockTokens,
		})
	}
	return out
}

var kinds = [...]Kind{kv.Stored: Stored, kv.Removed: Removed, kv.Cleared: Cleared}
