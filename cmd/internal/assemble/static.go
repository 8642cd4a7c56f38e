package assemble

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
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
	models [][]offer   // by engine, as last heard; owned by run
	silent atomic.Bool // some engine has never been heard
	view   atomic.Pointer[fleet.View]
	cancel context.CancelFunc
	task   sync.WaitGroup
}

const (
	askEvery   = 5 * time.Second
	askFirst   = 200 * time.Millisecond // while some engine has never been heard
	askTimeout = 2 * time.Second
	maxModels  = 1 << 20 // bytes of an answer
)

func startStaticFleet(ctx context.Context, p Process, urls []string) *staticFleet {
	f := &staticFleet{client: &http.Client{Timeout: askTimeout}, models: make([][]offer, len(urls))}
	for _, u := range urls {
		f.urls = append(f.urls, strings.TrimRight(u, "/"))
	}
	f.view.Store(fleet.NewView(1, nil))
	f.ask(ctx, p)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	f.task.Go(func() {
		for {
			wait := askEvery
			if f.silent.Load() {
				wait = askFirst
			}
			timer := p.Clock.NewTimer(wait)
			select {
			case <-run.Done():
				timer.Stop()
				return
			case <-timer.C():
				f.ask(run, p)
			}
		}
	})
	return f
}

// offer is what an engine says of one model it serves.
type offer struct {
	name    string
	context unit.Tokens // longest prompt plus output; 0 is unknown
}

// ask asks all engines at once and publishes a new view if anything changed.
func (f *staticFleet) ask(ctx context.Context, p Process) {
	heard := make([][]offer, len(f.urls))
	var asked sync.WaitGroup
	for i, u := range f.urls {
		asked.Go(func() {
			models, err := askModels(ctx, f.client, u)
			if err != nil {
				level := slog.LevelWarn
				if len(f.models[i]) == 0 && f.silent.Load() { // said once
					level = slog.LevelDebug
				}
				p.Log.Log(ctx, level, "engine does not say which models it serves", "engine", u, "err", err)
				models = f.models[i]
			}
			heard[i] = models
		})
	}
	asked.Wait()
	f.silent.Store(slices.ContainsFunc(heard, func(m []offer) bool { return len(m) == 0 }))
	if slices.EqualFunc(f.models, heard, slices.Equal[[]offer]) {
		return
	}
	f.models = heard
	var workers []fleet.Worker
	for i, u := range f.urls {
		if len(heard[i]) > 0 {
			workers = append(workers, engineAt(u, heard[i]))
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

// askModels is the models an engine serves, base models first.
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
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxModels))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var models, adapters []offer
	for _, m := range gjson.GetBytes(body, "data").Array() {
		id := m.Get("id")
		if id.Type != gjson.String || id.Str == "" {
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

func (f *staticFleet) close() {
	f.cancel()
	f.task.Wait()
	f.client.CloseIdleConnections()
}

// Samples is nil: nobody reports for an engine without a worker beside it.
func (f *staticFleet) Samples() *fleet.Samples { return nil }

// Events is nil: engines without a worker beside them are guessed.
func (f *staticFleet) Events() *prefix.Table { return nil }
