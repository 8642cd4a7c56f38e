package assemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	neturl "net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// staticFleet is a fleet of engines given by URL, without planners: each is
// asked from time to time which models it serves.
//
// An engine that has answered once stays in the view when it falls silent, as a
// registered worker would until its lease ends: connect failures take it out
// of routing meanwhile, and bring it back by themselves.
type staticFleet struct {
	client *http.Client
	urls   []string
	heard  []hearsay // by engine; owned by run
	view   atomic.Pointer[fleet.View]
	down   atomic.Pointer[map[fleet.WorkerID]bool] // who did not answer when last asked
	cancel context.CancelFunc
	task   sync.WaitGroup

	governing *governor // nil where no file of a policy is named
}

// hearsay is what is known of one engine.
type hearsay struct {
	models []offer // as last heard
	fault  string  // why it did not answer when last asked; empty when it did
}

const (
	askEvery   = 5 * time.Second
	askSilent  = time.Second            // while some engine does not answer
	askFirst   = 200 * time.Millisecond // the same, shortly after the start
	startTime  = 30 * time.Second       // how long that is
	askTimeout = 2 * time.Second
	maxAnswer  = 1 << 20 // bytes of a list of models
)

func startStaticFleet(ctx context.Context, p Process, urls []string) *staticFleet {
	f := &staticFleet{client: &http.Client{Timeout: askTimeout}, heard: make([]hearsay, len(urls))}
	for _, u := range urls {
		f.urls = append(f.urls, engineRoot(u))
	}
	f.view.Store(fleet.NewView(1, nil))
	f.down.Store(&map[fleet.WorkerID]bool{})
	f.ask(ctx, p)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	f.task.Go(func() { f.run(run, p) })
	return f
}

// engineRoot is where an engine's API begins. Users copy the base URL of a
// client, which ends in /v1; requests bring that themselves.
func engineRoot(url string) string {
	return strings.TrimRight(strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1"), "/")
}

func (f *staticFleet) run(ctx context.Context, p Process) {
	began := p.Clock.Now()
	for {
		wait := askEvery
		if len(*f.down.Load()) > 0 {
			wait = askSilent
			if p.Clock.Now().Sub(began) < startTime {
				wait = askFirst
			}
		}
		timer := p.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
			f.ask(ctx, p)
		}
	}
}

// offer is what an engine says of one model it serves.
type offer struct {
	name    string
	context unit.Tokens // longest prompt plus output; 0 is unknown
}

// ask asks all engines at once and publishes a new view if anything changed.
func (f *staticFleet) ask(ctx context.Context, p Process) {
	heard := make([]hearsay, len(f.urls))
	var asked sync.WaitGroup
	for i, u := range f.urls {
		asked.Go(func() { heard[i] = f.askOne(ctx, u, f.heard[i].models) })
	}
	asked.Wait()
	if ctx.Err() != nil {
		return // nobody had time to answer
	}
	changed, down := false, map[fleet.WorkerID]bool{}
	for i, u := range f.urls {
		report(p.Log, u, &f.heard[i], &heard[i])
		changed = changed || !slices.Equal(f.heard[i].models, heard[i].models)
		if heard[i].fault != "" {
			down[fleet.WorkerID(u)] = true
		}
	}
	f.heard = heard
	f.down.Store(&down)
	if changed {
		f.publish()
	}
}

func (f *staticFleet) askOne(ctx context.Context, url string, known []offer) hearsay {
	models, err := askModels(ctx, f.client, url)
	switch {
	case err != nil:
		if failed, ok := errors.AsType[*neturl.Error](err); ok {
			err = failed.Err // the log has the URL already
		}
		return hearsay{known, err.Error()}
	case len(models) == 0:
		return hearsay{known, "it serves no model"}
	}
	return hearsay{models: models}
}

// report logs that an engine fell silent, or came back: each once.
func report(log *slog.Logger, url string, before, now *hearsay) {
	switch {
	case now.fault != "" && before.fault == "":
		log.Warn("engine unreachable; it is asked again until it answers", "engine", url, "error", now.fault)
	case now.fault == "" && before.fault != "":
		log.Info("engine reachable again", "engine", url, "models", len(now.models))
	}
}

func (f *staticFleet) publish() {
	var workers []fleet.Worker
	for i, u := range f.urls {
		if models := f.heard[i].models; len(models) > 0 {
			workers = append(workers, engineAt(u, models))
		}
	}
	f.view.Store(fleet.NewView(f.view.Load().Index+1, workers))
}

// engineAt is the engine at u as a worker.
func engineAt(u string, models []offer) fleet.Worker {
	w := fleet.Worker{ID: fleet.WorkerID(u), Epoch: 1, Incarnation: u, Role: fleet.RoleBoth, Engine: "openai", URL: u}
	for _, m := range models {
		w.Models = append(w.Models, m.name)
		if c := w.Capacity.MaxContext; c == 0 || m.context > 0 && m.context < c {
			w.Capacity.MaxContext = m.context
		}
	}
	return w
}

// askModels is the models an engine serves, base models first, less names that no
// request can carry.
func askModels(ctx context.Context, client *http.Client, url string) ([]offer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var models, adapters []offer
	for _, m := range gjson.GetBytes(body, "data").Array() {
		id := m.Get("id")
		if id.Type != gjson.String || id.Str == "" || len(id.Str) > edge.MaxModelName {
			continue
		}
		one := offer{name: id.Str, context: unit.Tokens(max(m.Get("max_model_len").Int(), 0))}
		if m.Get("parent").Str != "" {
			adapters = append(adapters, one)
		} else {
			models = append(models, one)
		}
	}
	return append(models, adapters...), nil
}

func (f *staticFleet) View() *fleet.View { return f.view.Load() }

// Answers reports whether the engine answered when last asked.
func (f *staticFleet) Answers(id fleet.WorkerID) bool { return !(*f.down.Load())[id] }

func (f *staticFleet) close() {
	f.cancel()
	f.task.Wait()
	f.client.CloseIdleConnections()
	f.governing.end()
}

func (f *staticFleet) governor() *governor { return f.governing }

// Samples is nil: nobody reports for an engine without a worker beside it.
func (f *staticFleet) Samples() *fleet.Samples { return nil }

// Events is nil: engines without a worker beside them are guessed.
func (f *staticFleet) Events() *prefix.Table { return nil }
