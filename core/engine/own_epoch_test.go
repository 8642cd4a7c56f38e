package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// A worker does not refuse what is meant for the epoch that it is about to hear
// of, and does not wait for one that is over or never comes.
func TestOwn(t *testing.T) {
	for name, tt := range map[string]struct {
		now, meant, then fleet.Epoch // then is heard after 300 ms, unless 0
		want             bool
		took             time.Duration
	}{
		"its own":                     {now: 7, meant: 7, want: true},
		"one that is over":            {now: 7, meant: 6},
		"first registration":          {meant: 3, then: 3, want: true, took: 300 * time.Millisecond},
		"registered anew":             {now: 7, meant: 9, then: 9, want: true, took: 300 * time.Millisecond},
		"registered again after that": {now: 7, meant: 9, then: 10, took: 300 * time.Millisecond},
		"heard of an older one":       {now: 7, meant: 9, then: 8, took: engine.RegistrationTime},
		"another worker's":            {now: 7, meant: 9, took: engine.RegistrationTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var o engine.OwnEpoch
				o.Set(tt.now)
				if tt.then != 0 {
					time.AfterFunc(300*time.Millisecond, func() { o.Set(tt.then) })
				}
				start := time.Now()
				if got := o.Is(t.Context(), tt.meant); got != tt.want || time.Since(start) != tt.took {
					t.Errorf("%v after %v, want %v after %v", got, time.Since(start), tt.want, tt.took)
				}
			})
		})
	}
}

func TestOwnEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		start := time.Now()
		var o engine.OwnEpoch
		if o.Is(ctx, 1) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("after %v", time.Since(start))
		}
	})
}
