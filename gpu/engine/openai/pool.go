package openai

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/h1"
)

// pool is the connections to one incarnation of a worker, over client for
// http:// and over transport for https://; the other is nil.
type pool struct {
	base      *url.URL
	path      string // of base, escaped
	epoch     fleet.Epoch
	url       string
	client    *h1.Client
	transport *http.Transport
	used      uint64 // pools.turn at the last use
}

func (a *Adapter) newPool(w *fleet.Worker) (*pool, error) {
	base, err := url.Parse(w.URL)
	if err != nil {
		return nil, fmt.Errorf("openai: worker %q: %w", w.ID, err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Hostname() == "" {
		return nil, fmt.Errorf("openai: worker %q: %q is not an http URL", w.ID, base.Redacted())
	}
	p := &pool{base: base, path: base.EscapedPath(), epoch: w.Epoch, url: w.URL}
	if base.Scheme == "https" {
		p.transport = a.newTransport()
		return p, nil
	}
	port := base.Port()
	if port == "" {
		port = "80"
	}
	p.client = h1.New(net.JoinHostPort(base.Hostname(), port), h1.Config{Connect: a.cfg.Connect, Idle: a.cfg.Idle})
	return p, nil
}

// close gives up what is idle. Running calls go on.
func (p *pool) close() {
	if p.transport != nil {
		p.transport.CloseIdleConnections()
		return
	}
	p.client.Close()
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
		old.close()
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
	oldest.close()
}

func (p *pools) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.byID {
		pool.close()
	}
	clear(p.byID)
}
