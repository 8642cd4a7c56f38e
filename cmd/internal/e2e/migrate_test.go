package e2e

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// TestMigration kills the worker of a greedy stream at a random instant, fifty
// times. The client gets the text of an undisturbed worker, every time.
func TestMigration(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	s := startStack(t, assemble.DevWorker{ID: "a", Role: "both"}, assemble.DevWorker{ID: "b", Role: "both"})
	c := client(t)
	const tokens = 120
	lot := &questions{}
	for range 5 {
		p := prompt(random, 50+random.IntN(400))
		a := complete(t.Context(), c, s.aggregating.URL(), s.Model(), p, tokens)
		if !a.whole {
			t.Fatalf("undisturbed: %+v", a)
		}
		lot.prompts, lot.answers = append(lot.prompts, p), append(lot.answers, a.text)
	}
	for i := range 50 {
		victim := make(chan fleet.WorkerID, 1)
		tap := &http.Client{Transport: tapped{c.Transport, victim}}
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			id := <-victim
			time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond)
			before, _ := s.Worker(id)
			for _, child := range s.Children() {
				if child.Name() == string(id) {
					child.Signal(syscall.SIGKILL)
				}
			}
			eventually(t, string(id)+" is registered again", func() bool {
				now, ok := s.Worker(id)
				return ok && now.Epoch != before.Epoch
			})
		}()
		n := i % len(lot.prompts)
		a := complete(t.Context(), tap, s.aggregating.URL(), s.Model(), lot.prompts[n], tokens)
		<-killed
		if !a.whole || a.text != lot.answers[n] {
			t.Errorf("stream %d: %+v, want %q", i, a, lot.answers[n])
		}
	}
	moved := 0.0
	for _, f := range s.counts.Snapshot() {
		if f.Desc.Name == measure.Migrations.Name {
			for _, series := range f.Series {
				moved += series.Value
			}
		}
	}
	t.Logf("%v of 50 streams migrated", moved)
	if moved < 10 {
		t.Error("too few streams were broken for the test to prove anything")
	}
}

// tapped tells which worker serves a request as soon as its headers say so.
type tapped struct {
	http.RoundTripper
	victim chan fleet.WorkerID
}

func (t tapped) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		_, id, _ := strings.Cut(resp.Header.Get("X-Yardmaster-Path"), "worker=")
		id, _, _ = strings.Cut(id, ";")
		t.victim <- fleet.WorkerID(id)
	} else {
		t.victim <- ""
	}
	return resp, err
}
