package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/scrape"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// place is where a suite finds things; it reads this as JSON.
type place struct {
	// Gateway is the base URL of a gateway with default settings, Strict that of
	// one with little patience and room: 64 KiB bodies, 2 s a request, a heartbeat
	// each 200 ms.
	Gateway string `json:"gateway"`
	Strict  string `json:"strict"`
	// Engines are the roots of the engines by the model they serve. One of plain,
	// one of narrow, which runs one request at a time, two of twin.
	Engines map[string][]string  `json:"engines"`
	Plays   map[string]*playText `json:"plays"`
	Run     string               `json:"run"`
	Short   bool                 `json:"short"`
}

// fleet is the system a suite runs against.
type fleet struct {
	engines  []*scripted.Engine
	gateways []*gateway
	place    place
}

func startFleet(ctx context.Context, o *options, plays map[string]*playText, diag io.Writer) (*fleet, error) {
	f := &fleet{place: place{Engines: map[string][]string{}, Plays: plays, Run: o.run, Short: o.short}}
	for _, e := range []struct {
		model   string
		running int
	}{{"plain", 0}, {"narrow", 1}, {"twin", 0}, {"twin", 0}} {
		engine, err := scripted.New(scripted.Options{Model: e.model, MaxRunning: e.running})
		if err == nil {
			err = engine.Start(ctx, "127.0.0.1:0")
		}
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.engines = append(f.engines, engine)
		f.place.Engines[e.model] = append(f.place.Engines[e.model], engine.URL())
	}
	log := io.Discard
	if o.verbose {
		log = diag
	}
	patient, err := startGateway(ctx, o.yardmaster, log, f.engines)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.gateways = append(f.gateways, patient)
	strict, err := startGateway(ctx, o.yardmaster, log, f.engines, "--max-body", "64KiB", "--heartbeat", "200ms",
		"--request-timeout", "2s", "--first-token-timeout", "2s", "--idle-timeout", "2s")
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.gateways = append(f.gateways, strict)
	f.place.Gateway, f.place.Strict = patient.url+"/v1", strict.url+"/v1"
	return f, nil
}

// settled waits until nothing is in flight: neither in the engines nor by the
// gateways' own count, which a leaked reservation would keep up.
func (f *fleet) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, e := range f.engines {
		if err := e.Await(ctx, func(c scripted.Counters, _ []scripted.Record) bool { return c.InFlight == 0 }); err != nil {
			return fmt.Errorf("requests are still in flight in an engine: %w", err)
		}
	}
	for _, g := range f.gateways {
		if err := g.settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) close() error {
	var faults []error
	for _, g := range f.gateways {
		faults = append(faults, g.close())
	}
	for _, e := range f.engines {
		faults = append(faults, e.Close())
	}
	return errors.Join(faults...)
}

// gateway is a child process.
type gateway struct {
	url  string
	cmd  *exec.Cmd
	logs sync.WaitGroup
	tail *tail
}

// startGateway starts a gateway over the engines and waits until it is ready.
func startGateway(ctx context.Context, binary string, log io.Writer, engines []*scripted.Engine, settings ...string) (*gateway, error) {
	args := append([]string{"gateway", "--listen", "127.0.0.1:0", "--log-format", "json"}, settings...)
	for _, e := range engines {
		args = append(args, "--engine", e.URL())
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = io.Discard
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g := &gateway{cmd: cmd, tail: &tail{}}
	ready := make(chan string, 1)
	g.logs.Go(func() { followLog(stderr, io.MultiWriter(log, g.tail), ready) })
	select {
	case g.url = <-ready:
	case <-time.After(20 * time.Second):
	}
	if g.url == "" {
		return nil, errors.Join(fmt.Errorf("the gateway did not get ready; it said last:\n%s", g.tail), g.close())
	}
	return g, nil
}

// followLog copies the log and delivers the URL of the line that says ready; ""
// if it ends before.
func followLog(from io.Reader, to io.Writer, ready chan<- string) {
	defer close(ready)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	told := false
	for lines.Scan() {
		_, _ = fmt.Fprintf(to, "%s\n", lines.Bytes()) // a log that cannot be shown is no failure
		var line struct {
			Msg string `json:"msg"`
			URL string `json:"url"`
		}
		if !told && json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "gateway ready" {
			ready <- line.URL
			told = true
		}
	}
}

func (g *gateway) settled(ctx context.Context) error {
	for {
		metrics, err := scrape.Read(ctx, http.DefaultClient, g.url)
		if err != nil {
			return err
		}
		flying := metrics.Sum(measure.RequestsInFlight) + metrics.Sum(measure.WorkerInFlight)
		if flying == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the gateway still counts %v in flight", flying)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (g *gateway) close() error {
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	hurry := time.AfterFunc(10*time.Second, func() { _ = g.cmd.Process.Kill() }) // Wait says what came of it
	defer hurry.Stop()
	g.logs.Wait()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("the gateway ended badly: %w; it said last:\n%s", err, g.tail)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if extra := len(t.text) - tailBytes; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
