package pd

import (
	"context"
	"sync"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Legs makes exporters and importers for the requests of one engine. It is safe
// for concurrent use.
type Legs struct{ node *transfer.Node }

// New makes legs that move their pages through node, whose memory must be that
// of the engine they are given to.
func New(node *transfer.Node) *Legs { return &Legs{node: node} }

// Export waits, bounded, for the decode leg's reservation of transfer id and
// returns the exporter of the prefill leg, an [Exporter]. After an error the
// decode worker has been told; the error has a Reason method.
//
// The exporter must be given to an engine, which ends it, or be ended by Abort.
func (l *Legs) Export(ctx context.Context, id uint64, peer engine.Peer, prompt []int32) (batch.Exporter, error) {
	e, err := l.node.Export(ctx, id, peer, prompt)
	if err != nil {
		return nil, err
	}
	return &Exporter{Export: e}, nil
}

// Refuse says that there will be no prefill leg for transfer id, for the reason
// why: the decode worker is told at once. A worker calls it when it turns a
// prefill leg away before Export.
func (l *Legs) Refuse(id uint64, why transfer.Reason) { l.node.Refuse(id, why) }

// Import returns the importer of the decode leg of transfer id, whose prefill
// leg is with peer.
func (l *Legs) Import(id uint64, peer engine.Peer) batch.Importer {
	return &importer{node: l.node, id: id, peer: peer}
}

// Exporter is the [batch.Exporter] of one prefill leg. Done and Wait, of the
// embedded export, tell what became of it.
type Exporter struct {
	*transfer.Export
	blocks []int32 // the request's table as the transfer layer takes it
}

// Computed implements [batch.Exporter].
func (e *Exporter) Computed(layer, from, to int, blocks []kv.BlockID) {
	e.blocks = e.blocks[:0]
	for _, b := range blocks {
		e.blocks = append(e.blocks, int32(b))
	}
	e.Export.Computed(layer, from, to, e.blocks)
}

// importer is the [batch.Importer] of one decode leg.
type importer struct {
	node *transfer.Node
	id   uint64
	peer engine.Peer

	mu       sync.Mutex
	canceled bool
	started  chan struct{} // closed when current is set
	current  *transfer.Import
}

// Start implements [batch.Importer].
func (i *importer) Start(dst batch.Destination, done func(hidden []float32, err error)) {
	i.mu.Lock()
	if i.canceled {
		i.mu.Unlock()
		done(nil, transfer.Failure(transfer.ReasonCanceled, nil))
		return
	}
	started := make(chan struct{})
	i.started = started
	i.mu.Unlock()
	refs := make([]transfer.Ref, len(dst.Blocks))
	for k, b := range dst.Blocks {
		refs[k] = transfer.Ref{Block: int32(b), Generation: dst.Gens[k]}
	}
	i.current = i.node.Import(i.id, i.peer, transfer.Destination{Prompt: dst.Prompt, From: dst.From, Blocks: refs}, done)
	close(started)
}

// Cancel implements [batch.Importer].
func (i *importer) Cancel() {
	i.mu.Lock()
	i.canceled = true
	started := i.started
	i.mu.Unlock()
	if started == nil {
		i.node.Decline(i.id, i.peer)
		return
	}
	<-started
	i.current.Cancel()
}
