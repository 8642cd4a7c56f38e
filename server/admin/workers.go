package admin

import "net/http"

// Workers is the fleet as one node knows it.
type Workers struct {
	Workers []Worker `json:"workers"` // by id
}

// Worker is one member of the fleet. What the asked node does not know is left out.
type Worker struct {
	ID       string   `json:"id"`
	Epoch    uint64   `json:"epoch,omitempty"` // none where there are no planners
	Role     string   `json:"role"`
	Engine   string   `json:"engine"`
	Models   []string `json:"models"`
	URL      string   `json:"url"`
	Transfer string   `json:"transfer,omitempty"` // host:port of its KV transfer endpoint
	Draining bool     `json:"draining"`
	// HeardMS is since the leader last heard of it, in milliseconds.
	HeardMS *int64 `json:"heard_ms,omitempty"`
	// InFlight is the requests that gateways have with it.
	InFlight *int64 `json:"in_flight,omitempty"`
	// Prefix is exact when all that it holds is known by its KV events, degraded when
	// some were lost; without events it is left out.
	Prefix string `json:"prefix,omitempty"`
	Blocks *int64 `json:"blocks,omitempty"` // KV blocks that it says it holds
}

func (p *Parts) workers(w http.ResponseWriter, _ *http.Request) {
	if p.Workers == nil {
		fail(w, http.StatusNotFound, "no_fleet", "this process knows no workers")
		return
	}
	answer(w, http.StatusOK, Workers{Workers: append([]Worker{}, p.Workers()...)})
}
