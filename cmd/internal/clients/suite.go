package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// suite is one client's cases.
type suite struct {
	name string
	// prepare makes the client ready in the work folder and returns the command
	// that runs the suite, and the client's name with its version. An error that
	// wraps errUnavailable is a reason to skip.
	prepare func(ctx context.Context, o *options, work string) (cmd []string, env []string, client string, err error)
	// inside runs a suite that is part of this program.
	inside func(ctx context.Context, p *place) []outcome
}

// outcome is what became of a case; suites print it as JSON.
type outcome struct {
	Case   string  `json:"case"`
	Status string  `json:"status"` // pass, fail or skip
	Detail string  `json:"detail"`
	Millis float64 `json:"ms"`
}

const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// errUnavailable means that what a suite needs is not to be had here.
var errUnavailable = errors.New("not available here")

func suites() []suite {
	return []suite{
		{name: "python", prepare: preparePython},
		{name: "node", prepare: prepareNode},
		{name: "go", prepare: prepareGo},
		{name: "curl", inside: curlCases},
	}
}

func suiteNames() []string {
	var names []string
	for _, s := range suites() {
		names = append(names, s.name)
	}
	return names
}

// suiteTime bounds a suite's run.
const suiteTime = 10 * time.Minute

// verdict is a suite's result.
type verdict struct {
	client string // and version
	cases  []outcome
}

// play prepares the suite, starts a fleet for it, and runs it.
func play(ctx context.Context, o *options, s suite, plays map[string]*playText, work string, diag io.Writer) (v verdict, err error) {
	v.client = s.name
	if err := os.MkdirAll(work, 0o755); err != nil {
		return v, err
	}
	var command, env []string
	if s.prepare != nil {
		if command, env, v.client, err = s.prepare(ctx, o, work); err != nil {
			return v, err
		}
	}
	f, err := startFleet(ctx, o, plays, diag)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	ctx, cancel := context.WithTimeout(ctx, suiteTime)
	defer cancel()
	if s.inside != nil {
		v.cases = s.inside(ctx, &f.place)
	} else if v.cases, err = runSuite(ctx, command, env, work, &f.place, diag); err != nil {
		return v, err
	}
	end := outcome{Case: "settled", Status: passed}
	if err := f.settled(ctx); err != nil {
		end.Status, end.Detail = failed, err.Error()
	}
	v.cases = append(v.cases, end)
	return v, nil
}

// placeVariable names the file that says where everything is.
const placeVariable = "YARDMASTER_CLIENTS"

func runSuite(ctx context.Context, command, env []string, work string, p *place, diag io.Writer) ([]outcome, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(work, "place.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &out, diag
	cmd.Env = append(slices.Concat(os.Environ(), env), placeVariable+"="+file)
	cmd.WaitDelay = 5 * time.Second
	runErr := cmd.Run()
	cases, err := readOutcomes(&out)
	if err == nil && runErr != nil {
		err = fmt.Errorf("the suite ended after %d cases: %w", len(cases), runErr)
	}
	return cases, err
}

// readOutcomes reads what a suite printed.
func readOutcomes(r io.Reader) ([]outcome, error) {
	var cases []outcome
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c outcome
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil || c.Case == "" || !slices.Contains([]string{passed, failed, skipped}, c.Status) {
			return cases, fmt.Errorf("the suite printed something else than an outcome: %.200q", lines.Text())
		}
		cases = append(cases, c)
	}
	return cases, lines.Err()
}
