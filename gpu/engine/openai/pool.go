package openai

import (
	"net/http"
	"net/url"
	"sync"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// pool is the connections to one incarnation of a worker.
type pool struct {
	base      *url.URL
	epoch     fleet.Epoch
	url       string
	transport *http.Transport
	used      uint64 // pools.turn at the last use
}

// maxPools bounds the pools kept. Beyond it the one unused for longest goes: its
// worker has most likely left.
const maxPools = 4096

type pools struct {
	mu   sync.Mutex
	byID map[fleet.WorkerID]*pool
	turn uint64
}

// get finds the pool of w's incarnation. A pool of an earlier one is given up.
func (p *pools) get(w *fleet.Worker, create func(*fleet.Worker) (*pool, error)) (*pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn++
	old := p.byID[w.ID]
	if old != nil && old.epoch == w.Epoch && old.url == w.URL {
		old.used = p.turn
		return old, nil
	}
	fresh, err := create(w)
	if err != nil {
		return nil, err
	}
	if old != nil {
		old.transport.CloseIdleConnections()
	} else if len(p.byID) >= maxPools {
		p.dropOldest()
	}
	fresh.used = p.turn
	p.byID[w.ID] = fresh
	return fresh, nil
}

func (p *pools) dropOldest() {
	var id fleet.WorkerID
	var oldest *pool
	for i, candidate := range p.byID {
		if oldest == nil || candidate.used < oldest.used {
			id, oldest = i, candidate
		}
	}
	delete(p.byID, id)
	oldest.transport.CloseIdleConnections()
}

func (p *pools) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.byID {
		pool.transport.CloseIdleConnections()
	}
	clear(p.byID)
}
