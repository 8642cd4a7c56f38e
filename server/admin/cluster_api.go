package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/measure"
)

const (
	// askTime bounds a question: members that do not answer within it are listed
	// as such.
	askTime = 3 * time.Second
	// changeTime bounds a change, an election meanwhile included.
	changeTime = 15 * time.Second
	// snapshotTime bounds a whole snapshot, either way.
	snapshotTime = 30 * time.Minute

	maxBody = 64 << 10
	// maxSnapshot bounds a saved state, in bytes. The index is as large as its
	// budget, 256 MiB, and the rest is a few MiB.
	maxSnapshot = 4 << 30
)

// clusterAPI serves the paths under /admin/cluster.
type clusterAPI struct {
	cluster  Cluster // nil outside a cluster
	registry *measure.Registry
	about    About
}

func (a *clusterAPI) mount(r chi.Router) {
	r.Route("/admin/cluster", func(r chi.Router) {
		r.Use(present(a.cluster != nil, "no_cluster", "this process is in no cluster: ask a planner, or a gateway that was started with --join"))
		r.Get("/status", a.status)
		r.Get("/health", a.health)
		r.Get("/peers", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.cluster.Peers()) })
		r.Post("/peers", a.add)
		r.Delete("/peers/{id}", a.remove)
		r.Post("/transfer-leader", a.transfer)
		r.Post("/step-down", a.stepDown)
		r.Get("/autopilot", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.cluster.Autopilot()) })
		r.Put("/autopilot", a.setAutopilot)
		r.Get("/snapshot", a.save)
		r.Post("/snapshot", a.restore)
		r.Get("/debug", a.debug)
	})
}

func (a *clusterAPI) status(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	answer(w, http.StatusOK, a.cluster.Status(ctx))
}

// health has status 503 while the cluster is not healthy, so that a probe need
// not read it.
func (a *clusterAPI) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	s := a.cluster.Status(ctx)
	code := http.StatusOK
	if !s.Healthy {
		code = http.StatusServiceUnavailable
	}
	answer(w, code, s.health())
}

// change runs one change within its time and tells how it went.
func change[T any](w http.ResponseWriter, r *http.Request, do func(context.Context) (T, error)) {
	ctx, cancel := lasting(r.Context(), changeTime)
	defer cancel()
	extend(w, changeTime+time.Second)
	done, err := do(ctx)
	if err != nil {
		failWith(w, err)
		return
	}
	answer(w, http.StatusOK, done)
}

// Led says who leads after a change.
type Led struct {
	Leader string `json:"leader"`
}

func (a *clusterAPI) add(w http.ResponseWriter, r *http.Request) {
	var p Peer
	if !read(w, r, &p) {
		return
	}
	change(w, r, func(ctx context.Context) (Peers, error) {
		err := a.cluster.Add(ctx, p)
		return a.cluster.Peers(), err
	})
}

func (a *clusterAPI) remove(w http.ResponseWriter, r *http.Request) {
	id, err := pathParam(r, "id")
	if err != nil {
		failWith(w, fmt.Errorf("the id: %w", ErrInvalid))
		return
	}
	change(w, r, func(ctx context.Context) (Peers, error) {
		err := a.cluster.Remove(ctx, id)
		return a.cluster.Peers(), err
	})
}

func (a *clusterAPI) transfer(w http.ResponseWriter, r *http.Request) {
	var to struct {
		ID string `json:"id"` // empty: whoever is fittest
	}
	if !read(w, r, &to) {
		return
	}
	change(w, r, func(ctx context.Context) (Led, error) {
		leader, err := a.cluster.Transfer(ctx, to.ID)
		return Led{leader}, err
	})
}

func (a *clusterAPI) stepDown(w http.ResponseWriter, r *http.Request) {
	change(w, r, func(ctx context.Context) (Led, error) {
		leader, err := a.cluster.StepDown(ctx)
		return Led{leader}, err
	})
}

func (a *clusterAPI) setAutopilot(w http.ResponseWriter, r *http.Request) {
	wanted := a.cluster.Autopilot() // what the body leaves out stays
	if !read(w, r, &wanted) {
		return
	}
	change(w, r, func(ctx context.Context) (Autopilot, error) {
		return wanted, a.cluster.SetAutopilot(ctx, wanted)
	})
}

// save streams a snapshot. When it breaks off the connection is cut, so that half
// of one cannot be taken for a whole.
func (a *clusterAPI) save(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), snapshotTime)
	defer cancel()
	extend(w, stallTime)
	out := &patient{w: w}
	err := a.cluster.Save(ctx, out)
	switch {
	case err != nil && out.begun:
		panic(http.ErrAbortHandler)
	case err != nil:
		failWith(w, err)
	}
}

func (a *clusterAPI) restore(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := lasting(r.Context(), snapshotTime)
	defer cancel()
	extend(w, snapshotTime)
	most := int64(maxSnapshot)
	if room, known := a.cluster.Room(); known {
		most = min(most, max(room, 0))
	}
	if r.ContentLength > most {
		tooLong(w, most, r.ContentLength)
		return
	}
	err := a.cluster.Restore(ctx, upload(w, r, most)) // its length need not be told
	if tooLarge(err) {
		tooLong(w, most, r.ContentLength)
		return
	}
	if err != nil {
		failWith(w, err)
		return
	}
	answer(w, http.StatusOK, a.cluster.Peers())
}

// tooLong refuses a saved state that is longer than most bytes; length is what the
// client says, or -1.
func tooLong(w http.ResponseWriter, most, length int64) {
	if most == maxSnapshot {
		fail(w, http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("a saved state has at most %d MiB", most>>20))
		return
	}
	more := "this one has more"
	if length > 0 {
		more = fmt.Sprintf("this one has %.1f MiB", float64(length)/(1<<20))
	}
	fail(w, http.StatusInsufficientStorage, "no_room", fmt.Sprintf(
		"this node's disk has room to restore a saved state of %.1f MiB, and %s: free some space under its data directory, or ask another planner",
		float64(most)/(1<<20), more))
}

// read fills v from the body, strictly; it answers by itself when it cannot.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, v, json.RejectUnknownMembers(true))
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid", "the body is not understood: "+err.Error())
		return false
	}
	return true
}
