package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
	"github.com/yardmaster/yardmaster/server/admin"
)

// Push is how long it took from an upload until every node decided by it: checks,
// majority, compilation on each node, and the change of the binding.
type Push struct {
	Small Uploads  `json:"small"`
	Go    *Uploads `json:"go,omitempty"` // of the module built by Go
}

// Uploads are those of one module, in milliseconds, in their order.
type Uploads struct {
	Bytes    int       `json:"bytes"`
	PushMS   []float64 `json:"push_ms"`   // until the upload was answered
	ActiveMS []float64 `json:"active_ms"` // until every node decided by it
}

// The bars, in milliseconds, and the size of the small module.
const (
	smallBytes    = 4096
	mostSmallMS   = 1000
	mostGoMS      = 5000
	policyOfBench = "bench"
)

func (b *bench) push(ctx context.Context) error {
	p := &Push{}
	b.result.Push = p
	b.say(fmt.Sprintf("pushing %d modules of %d bytes", b.Pushes, smallBytes))
	if err := b.uploads(ctx, &p.Small, policy.Scorer(), smallBytes, b.Pushes); err != nil {
		return err
	}
	b.most("push of 4 KB until active everywhere, ms", slices.Max(p.Small.ActiveMS), mostSmallMS)
	if b.Go == nil {
		b.say("no module built by Go is there: its push is not measured")
		return nil
	}
	p.Go = &Uploads{}
	b.say(fmt.Sprintf("pushing %d modules of %d bytes, built by Go", b.GoPushes, len(b.Go)))
	if err := b.uploads(ctx, p.Go, b.Go, 0, b.GoPushes); err != nil {
		return err
	}
	b.most("push of a Go module until active everywhere, ms", slices.Max(p.Go.ActiveMS), mostGoMS)
	return nil
}

// version is another version of a module, under the bench's name.
func (b *bench) version(wasm []byte, size int) (module []byte, ref string, err error) {
	b.names++
	module, err = renamed(wasm, policyOfBench, b.names, size)
	return module, fmt.Sprintf("%s@%d", policyOfBench, b.names), err
}

func (b *bench) uploads(ctx context.Context, u *Uploads, wasm []byte, size, count int) error {
	for range count {
		module, ref, err := b.version(wasm, size)
		if err != nil {
			return err
		}
		u.Bytes = len(module)
		began := time.Now()
		if err := b.fleet.push(ctx, module); err != nil {
			return err
		}
		u.PushMS = append(u.PushMS, milliseconds(time.Since(began)))
		index, err := b.fleet.change(ctx, "promote", admin.PolicyPartWant{Policy: ref})
		if err != nil {
			return err
		}
		if err := b.fleet.follow(ctx, index); err != nil {
			return err
		}
		u.ActiveMS = append(u.ActiveMS, milliseconds(time.Since(began)))
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
