package e2e

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
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
			t.Errorf("stream %d: %+v (%v), want %q", i, a, a.err, lot.answers[n])
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

// TestLostBeforeOutput kills a worker under requests that have shown nothing
// yet: whole answers, which show nothing until their end, and streams from the
// first on. No client notices, neither with one leg nor with two.
func TestLostBeforeOutput(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	s := startStack(t, assemble.DevWorker{ID: "p", Role: "prefill"}, assemble.DevWorker{ID: "a", Role: "decode"}, assemble.DevWorker{ID: "b", Role: "decode"})
	c := client(t)
	const tokens, clients = 100, 4
	lost := 0
	for i := range 20 {
		url := s.aggregating.URL()
		if i%2 == 1 {
			url = s.Gateway.URL()
		}
		stream := i%4 >= 2
		victim := []fleet.WorkerID{"a", "b"}[random.IntN(2)]
		before, _ := s.Worker(victim)
		var wg sync.WaitGroup
		for range clients {
			p := prompt(random, 600)
			wg.Go(func() {
				a := completeAs(t.Context(), c, url, s.Model(), p, tokens, stream)
				if !a.whole || a.status != http.StatusOK {
					t.Errorf("round %d, stream %v: %+v", i, stream, a)
				}
			})
		}
		time.Sleep(time.Duration(1+random.IntN(20)) * time.Millisecond)
		for _, child := range s.Children() {
			if child.Name() == string(victim) {
				child.Signal(syscall.SIGKILL)
			}
		}
		wg.Wait()
		eventually(t, string(victim)+" is registered again", func() bool {
			now, ok := s.Worker(victim)
			return ok && now.Epoch != before.Epoch
		})
	}
	for _, f := range s.counts.Snapshot() {
		if f.Desc.Name == measure.Failovers.Name || f.Desc.Name == measure.Migrations.Name {
			for _, series := range f.Series {
				lost += int(series.Value)
			}
		}
	}
	t.Logf("%d requests of one leg began or went on elsewhere", lost)
	if lost == 0 {
		t.Error("too few requests were lost for the test to prove anything")
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
