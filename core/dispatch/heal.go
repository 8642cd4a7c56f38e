package dispatch

import (
	"context"
	"time"

	"github.com/yardmaster/yardmaster/core/load"
)

// maxProbes bounds the workers that one round of Heal probes.
const maxProbes = 64

// Heal probes, every so often until ctx ends, the workers that are left out for
// connections they did not accept, and puts those back that Deps.Reach reaches. A
// restarted worker is so in service again long before its ejection runs out.
func (d *Dispatcher) Heal(ctx context.Context, every time.Duration) {
	timer := d.deps.Clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		d.heal(ctx)
		timer.Reset(every)
	}
}

func (d *Dispatcher) heal(ctx context.Context) {
	now := d.deps.Clock.Now()
	lined := d.table.Columns(d.deps.View())
	type reply struct {
		slot *load.Slot
		err  error
	}
	replies := make(chan reply, maxProbes)
	sent := 0
	for i, slot := range lined.Slots {
		if !slot.Unreachable(now) || sent == maxProbes {
			continue
		}
		sent++
		go func() { replies <- reply{slot, d.deps.Reach(ctx, &lined.View.Workers[i])} }()
	}
	for range sent {
		if r := <-replies; r.err == nil {
			r.slot.Heal()
			d.lobby.Stir()
		}
	}
}
