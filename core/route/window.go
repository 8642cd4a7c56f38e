package route

import (
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
)

// window sums up the prompts that this gateway gave each worker in the last three
// minutes: tokens that were to be computed, and tokens that were found cached. The
// sums are by worker of a view; a worker's go with its incarnation.
type window struct {
	view          *fleet.View
	missed, found []float64 // tokens
	parts         []windowPart
	period        int64 // the present one, in windowStep
}

const (
	windowSteps = 12
	windowStep  = 15 * time.Second
)

// windowPart is what a worker was given in each of the last periods.
type windowPart struct{ missed, found [windowSteps]float64 }

// follow lines the sums up with a view and lets go of what is too old. It
// allocates only when the view is new.
func (w *window) follow(view *fleet.View, now time.Time) {
	if w.view != view {
		w.move(view)
	}
	period := now.UnixNano() / int64(windowStep)
	gone := period - w.period
	switch {
	case gone == 0, gone < 0 && gone > -windowSteps: // clocks are read before decisions queue
		return
	case gone < 0 || gone >= windowSteps:
		clear(w.parts)
		clear(w.missed)
		clear(w.found)
		w.period = period
		return
	}
	for ; w.period < period; w.period++ {
		place := windowPlace(w.period + 1)
		for i := range w.parts {
			p := &w.parts[i]
			w.missed[i] -= p.missed[place] // exact: tokens are whole numbers
			w.found[i] -= p.found[place]
			p.missed[place], p.found[place] = 0, 0
		}
	}
}

func windowPlace(period int64) int64 { return ((period % windowSteps) + windowSteps) % windowSteps }

func (w *window) move(view *fleet.View) {
	old := *w
	n := len(view.Workers)
	w.view, w.parts, w.missed, w.found = view, make([]windowPart, n), make([]float64, n), make([]float64, n)
	if old.view == nil {
		return
	}
	for i := range view.Workers {
		if at := old.view.Current(view.Workers[i].ID, view.Workers[i].Epoch); at >= 0 {
			w.parts[i], w.missed[i], w.found[i] = old.parts[at], old.missed[at], old.found[at]
		}
	}
}

// add counts a prompt for a worker of the view.
func (w *window) add(worker int, missed, found unit.Tokens) {
	place, m, f := windowPlace(w.period), float64(missed), float64(found)
	w.parts[worker].missed[place] += m
	w.parts[worker].found[place] += f
	w.missed[worker] += m
	w.found[worker] += f
}
