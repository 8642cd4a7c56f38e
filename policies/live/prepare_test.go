package live_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
)

// What an upload is not is not served, and what it lacks is said.
func TestWhatCannotBePrepared(t *testing.T) {
	good := wasmRouter("mine", "1", each(first))
	for _, tt := range []struct {
		name, policy string
		kind         rollout.Kind
		wasm, lie    []byte // what is uploaded, and what comes when it is fetched
		warm         error
		want         string
	}{
		{"other bytes", "mine", rollout.Router, good, wasmRouter("mine", "2", each(first)), nil, "do not have the version's digest"},
		{"other name", "yours", rollout.Router, good, nil, nil, "mine@1 of kind router was uploaded as yours@1"},
		{"other kind", "mine", rollout.Admission, good, nil, nil, "was uploaded as mine@1 of kind admission"},
		{"no module", "mine", rollout.Router, []byte("rubbish"), nil, nil, "not a"},
		{"killed in the child", "mine", rollout.Router, good, nil, errors.New("killed after 10 s"), "killed after 10 s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster()
			r := newRigWith(t, c, live.Config{}, func(context.Context, []byte) error { return tt.warm })
			d := c.put(t, tt.policy, "1", tt.kind, tt.wasm)
			if tt.lie != nil {
				c.mu.Lock()
				c.blobs[d] = tt.lie
				c.mu.Unlock()
			}
			c.change(t, rollout.Change{Kind: tt.kind, Verb: rollout.VerbPromote, Stage: only(tt.policy, d)})
			eventually(t, tt.want, func() bool { return strings.Contains(r.node.News(), tt.want) })
			if d := r.decide(route.Query{}); d.Policy != "round-robin" || d.Index != 0 {
				t.Errorf("%+v", d.Mandate)
			}
			if n := r.registry.Gauge(measure.PolicyUnready, "bindings").Value(); n != 1 {
				t.Errorf("%v bindings are not ready", n)
			}
		})
	}
}

// heldUntil compiles nothing before release is closed.
func heldUntil(release <-chan struct{}) func(context.Context, []byte) error {
	return func(ctx context.Context, _ []byte) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A node that starts is not ready while what is bound is prepared, but not for ever.
func TestReadiness(t *testing.T) {
	c := newCluster()
	wasm := wasmRouter("mine", "1", each(first))
	d := c.put(t, "mine", "1", rollout.Router, wasm)
	c.promote(t, only("mine", d))
	release := make(chan struct{})
	r := newRigWith(t, c, live.Config{Grace: time.Hour}, heldUntil(release))
	eventually(t, "it says why", func() bool {
		err := r.node.Ready()
		return err != nil && strings.Contains(err.Error(), "mine@1: being prepared")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := r.node.Await(ctx, 0); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "mine@1") {
		t.Errorf("%v", err)
	}
	close(release)
	eventually(t, "it is ready", func() bool { return r.node.Ready() == nil })

	impatient := newRigWith(t, c, live.Config{Grace: time.Millisecond}, func(ctx context.Context, _ []byte) error { return errors.New("never") })
	eventually(t, "it serves by what is configured", func() bool { return impatient.node.Ready() == nil && impatient.node.News() != "" })
}

// A node that has not caught up with the cluster does not take nothing for all that
// is bound.
func TestReadinessWaitsForTheTable(t *testing.T) {
	c := newCluster()
	behind := errors.New("catching up")
	c.unready = behind
	release := make(chan struct{})
	r := newRigWith(t, c, live.Config{Grace: time.Hour}, heldUntil(release))
	if err := r.node.Ready(); !errors.Is(err, behind) {
		t.Errorf("it knows of nothing that is bound and is ready: %v", err)
	}
	c.promote(t, only("mine", c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))))
	c.mu.Lock()
	c.unready = nil
	c.mu.Unlock()
	for range 50 { // from before it has followed
		if r.node.Ready() == nil {
			t.Fatal("ready before what is bound")
		}
		time.Sleep(time.Millisecond)
	}
	close(release)
	eventually(t, "it is ready", func() bool { return r.node.Ready() == nil })
}

// A version is compiled when it is uploaded, before anybody binds it.
func TestUploadsArePreparedAtOnce(t *testing.T) {
	c := newCluster()
	var warmed atomic.Int64
	r := newRigWith(t, c, live.Config{}, func(context.Context, []byte) error { warmed.Add(1); return nil })
	d := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	eventually(t, "it is prepared", func() bool {
		s := r.node.Status().Versions
		return len(s) == 1 && s[0].Prepared
	})
	if n := r.registry.Gauge(measure.PolicyInstances, "live").Value(); n != 0 {
		t.Errorf("%v instances of what is not bound", n)
	}
	r.await(c.promote(t, only("mine", d)))
	if warmed.Load() != 1 {
		t.Errorf("compiled %d times", warmed.Load())
	}
}

func TestConfigIsValidated(t *testing.T) {
	_, err := live.Start(t.Context(), live.Config{Instances: 99, ShadowShare: 2, Grace: -1}, live.Deps{
		Cluster: newCluster(), Registry: &measure.Registry{}, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
	})
	for _, want := range []string{"instances", "share of time", "grace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name the %s", err, want)
		}
	}
}
