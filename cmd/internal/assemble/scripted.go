package assemble

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/gpu/collect"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// ErrScript means that a script of the scripted engine does not make sense.
var ErrScript = errors.New("cannot use the script")

// scriptedHost is the scripted engine as a worker.
type scriptedHost struct {
	engine   *scripted.Engine
	addr     string
	registry *measure.Registry
}

func startScripted(ctx context.Context, p Process, c config.Worker, ln net.Listener) (host, error) {
	addr, err := advertised(ln.Addr(), c.Advertise)
	if err != nil {
		return nil, err
	}
	opts := scripted.Options{
		Model: c.ServedName, Worker: fleet.WorkerID(c.ID), MaxRunning: c.MaxRunning,
		KVBlocks: unit.Blocks(c.KVBlocks), Clock: p.Clock,
	}
	if c.Script != "" {
		text, err := os.ReadFile(c.Script)
		if err != nil {
			return nil, fmt.Errorf("worker.script: %w", err)
		}
		if opts.Script, err = scripted.ParseScript(c.Script, text); err != nil {
			return nil, fmt.Errorf("worker.script: %w: %s: %w", ErrScript, c.Script, err)
		}
	}
	h := &scriptedHost{addr: addr, registry: p.Registry}
	if h.engine, err = scripted.New(opts); err != nil {
		return nil, err
	}
	if err := h.engine.Serve(ctx, ln); err != nil {
		return nil, errors.Join(err, h.engine.Close())
	}
	o := h.engine.Options()
	p.Log.Info("engine ready", "engine", "scripted", "model", o.Model, "script", c.Script, "kv_blocks", o.KVBlocks, "api", addr)
	return h, nil
}

// describe names the API as the transfer endpoint too: what scripted engines
// hand one another is a note, not KV.
func (h *scriptedHost) describe(w *fleet.Worker) {
	opts := h.engine.Options()
	w.URL = "http://" + h.addr
	w.Transfer = h.addr
	w.Models = append([]string{opts.Model}, opts.Adapters...)
	w.Compat = "scripted/" + opts.Model
	w.Capacity = fleet.Capacity{
		KVBlocks: opts.KVBlocks, BlockTokens: opts.BlockTokens,
		MaxContext: opts.MaxContext, MaxRunning: opts.MaxRunning,
	}
}

func (h *scriptedHost) epoch(e fleet.Epoch) { h.engine.SetEpoch(e) }

func (h *scriptedHost) stats() fleet.Stats {
	l := h.engine.Load()
	out := fleet.Stats{Running: fleet.Report(float64(l.Running)), Waiting: fleet.Report(float64(l.Waiting))}
	if blocks := h.engine.Options().KVBlocks; blocks > 0 {
		out.KVBlocksFree = fleet.Report(float64(max(int(blocks)-l.HeldBlocks, 0)))
	}
	return out
}

// sources are the sockets of the ranks, if the script publishes events.
func (h *scriptedHost) sources() (out []collect.Source) {
	for rank := range h.engine.Options().Ranks {
		publish, replay := h.engine.EventsAddr(rank)
		if publish == "" {
			continue
		}
		z := collect.ZMTP{Publish: "tcp://" + publish, Clock: h.engine.Options().Clock, Registry: h.registry}
		if replay != "" {
			z.Replay = "tcp://" + replay
		}
		out = append(out, z)
	}
	return out
}

func (h *scriptedHost) drain(ctx context.Context) error { return h.engine.Drain(ctx) }

func (h *scriptedHost) close(context.Context) error { return h.engine.Close() }
