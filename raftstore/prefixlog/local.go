package prefixlog

import (
	"context"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/group"
)

// To proposes to the group's member on this node, which must lead.
func To(g *group.Group[[]prefix.Outcome]) Submit {
	return func(ctx context.Context, entry []byte) (Wait, error) {
		p, err := g.Submit(ctx, entry)
		if err != nil {
			return nil, err
		}
		return p.Wait, nil
	}
}
