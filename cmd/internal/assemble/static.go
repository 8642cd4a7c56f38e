package assemble

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
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
	models [][]string // by engine, as last heard; owned by run
	view   atomic.Pointer[fleet.View]
	cancel context.CancelFunc
	task   sync.WaitGroup
}

const (
	askEvery   = 5 * time.Second
	askTimeout = 2 * time.Second
	maxModels  = 1 << 20 // bytes of an answer
)

func startStaticFleet(ctx context.Context, p Process, urls []string) *staticFleet {
	f := &staticFleet{client: &http.Client{Timeout: askTimeout}, models: make([][]string, len(urls))}
	for _, u := range urls {
		f.urls = append(f.urls, strings.TrimRight(u, "/"))
	}
	f.view.Store(fleet.NewView(1, nil))
	f.ask(ctx, p)
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	f.task.Go(func() {
		for {
			timer := p.Clock.NewTimer(askEvery)
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

// ask asks all engines at once and publishes a new view if anything changed.
func (f *staticFleet) ask(ctx context.Context, p Process) {
	heard := make([][]string, len(f.urls))
	var asked sync.WaitGroup
	for i, u := range f.urls {
		asked.Go(func() {
			models, err := askModels(ctx, f.client, u)
			if err != nil {
				p.Log.Warn("engine does not say which models it serves", "engine", u, "err", err)
				models = f.models[i]
			}
			heard[i] = models
		})
	}
	asked.Wait()
	if slices.EqualFunc(f.models, heard, slices.Equal[[]string]) {
		return
	}
	f.models = heard
	var workers []fleet.Worker
	for i, u := range f.urls {
		if len(heard[i]) > 0 {
			workers = append(workers, fleet.Worker{
				ID: fleet.WorkerID(u), Epoch: 1, Incarnation: u, Role: fleet.RoleBoth,
				Engine: "openai", Models: heard[i], URL: u,
			})
		}
	}
	f.view.Store(fleet.NewView(f.view.Load().Index+1, workers))
}

func askModels(ctx context.Context, client *http.Client, url string) ([]string, error) {
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
	var models []string
	for _, id := range gjson.GetBytes(body, "data.#.id").Array() {
		if id.Type == gjson.String && id.Str != "" {
			models = append(models, id.Str)
		}
	}
	return models, nil
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
