package quorum

import (
	"context"
	"errors"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore"
)

// gateway is this process as a member of the cluster.
type gateway struct{ *planners.Member }

// write brings a register of size bytes into force.
func (g gateway) write(ctx context.Context, key string, size int) error {
	_, err := g.put(ctx, key, size)
	return err
}

// put is write, and gives the register's version.
func (g gateway) put(ctx context.Context, key string, size int) (version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	res, err := g.Propose(ctx, planner.SetRegister{Key: key, Value: make([]byte, size)})
	return res.Version, errors.Join(err, res.Err())
}

// lost counts the registers that are older than acknowledged.
func (g gateway) lost(ctx context.Context, acknowledged map[string]uint64) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if _, err := g.Read(ctx, raftstore.Linearizable()); err != nil {
		return 0, err
	}
	for key, version := range acknowledged {
		if now, _ := g.State().Register(key); now.Version < version {
			n++
		}
	}
	return n, nil
}

// writeTime bounds a write.
const writeTime = 10 * time.Second
