package assemble

import (
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/server/admin"
)

// indexed is a fleet with an index that is fed by workers' KV events.
type indexed interface {
	// position is how far a worker's events are known; false for one without.
	position(id fleet.WorkerID, epoch fleet.Epoch) (prefix.Position, bool)
}

// crew lists a fleet's workers for operators. gateway is this process's, as far as
// it has one.
func crew(p Process, f Fleet, gateway func() *dispatch.Dispatcher) func() []admin.Worker {
	return func() []admin.Worker {
		view, samples := f.View(), f.Samples()
		var out []admin.Worker
		for i := range view.Workers {
			w := &view.Workers[i]
			one := admin.Worker{
				ID: string(w.ID), Epoch: uint64(w.Epoch), Role: w.Role.String(), Engine: w.Engine, Models: w.Models,
				URL: w.URL, Transfer: w.Transfer, Draining: w.Draining,
			}
			if s, ok := samples.Find(w.ID, w.Epoch); ok {
				one.HeardMS = new(max(p.Clock.Now().Sub(s.At), 0).Milliseconds())
			}
			if x, ok := f.(indexed); ok {
				describeIndex(&one, x, w)
			}
			out = append(out, one)
		}
		if d := gateway(); d != nil {
			slots := d.Load().Columns(view).Slots
			for i := range out {
				out[i].InFlight = new(int64(slots[i].InFlight()) + int64(slots[i].Others()))
			}
		}
		return out
	}
}

func describeIndex(one *admin.Worker, x indexed, w *fleet.Worker) {
	at, ok := x.position(w.ID, w.Epoch)
	if !ok {
		return
	}
	one.Prefix, one.Blocks = "degraded", new(int64(at.Blocks))
	if at.Exact {
		one.Prefix = "exact"
	}
}

func (p *Planner) position(id fleet.WorkerID, epoch fleet.Epoch) (prefix.Position, bool) {
	return p.store.Prefix().Position(id, epoch)
}

func (r *replica) position(id fleet.WorkerID, epoch fleet.Epoch) (prefix.Position, bool) {
	return r.seen.Load().Prefix().Position(id, epoch)
}
