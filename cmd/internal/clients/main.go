package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	yardmaster string // the binary that is the gateway
	cache      string // where clients are installed
	clients    []string
	run        string // pattern of case names
	short      bool
	strict     bool
	verbose    bool
}

func main() { os.Exit(status()) }

// status runs the command and is its exit status.
func status() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	default:
		fmt.Fprintln(os.Stderr, "clients:", err)
		return 1
	}
}

var errFailed = errors.New("cases failed")

func run(ctx context.Context, args []string, out, diag io.Writer) error {
	o, err := parseOptions(args, diag)
	if err != nil {
		return err
	}
	plays, err := readPlays()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "yardmaster-clients-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // nothing depends on it
	chosen := slices.DeleteFunc(suites(), func(s suite) bool { return !slices.Contains(o.clients, s.name) })
	results := report{columns: make([]column, len(chosen))}
	var all sync.WaitGroup
	for i, s := range chosen { // each has a fleet of its own, and waits most of the time
		all.Go(func() {
			began := time.Now()
			v, err := play(ctx, &o, s, plays, filepath.Join(work, s.name), diag)
			results.columns[i] = newColumn(s, v, err, time.Since(began))
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	results.expect(o.run)
	results.print(out)
	if results.failed(o.strict) {
		return errFailed
	}
	return nil
}

func parseOptions(args []string, diag io.Writer) (options, error) {
	var o options
	var clients string
	f := flag.NewFlagSet("clients", flag.ContinueOnError)
	f.SetOutput(diag)
	f.StringVar(&o.yardmaster, "yardmaster", "bin/yardmaster", "the `binary` whose gateway is tested")
	f.StringVar(&o.cache, "cache", "", "`folder` the clients are installed in (default: yardmaster/clients in the user's cache folder)")
	f.StringVar(&clients, "clients", strings.Join(suiteNames(), ","), "which `suites` to run")
	f.StringVar(&o.run, "run", "", "run the cases that match the `pattern`")
	f.BoolVar(&o.short, "short", false, "cut streams at some offsets instead of all")
	f.BoolVar(&o.strict, "strict", false, "fail where a toolchain or a registry is missing")
	f.BoolVar(&o.verbose, "v", false, "show the gateways' logs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if _, err := regexp.Compile(o.run); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	o.clients = strings.Split(clients, ",")
	for _, name := range o.clients {
		if !slices.Contains(suiteNames(), name) {
			return o, fmt.Errorf("-clients: there is no suite %q; there are %s", name, strings.Join(suiteNames(), ", "))
		}
	}
	if o.cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return o, err
		}
		o.cache = filepath.Join(base, "yardmaster", "clients")
	}
	var err error
	if o.yardmaster, err = filepath.Abs(o.yardmaster); err != nil {
		return o, err
	}
	if _, err := os.Stat(o.yardmaster); err != nil {
		return o, fmt.Errorf("-yardmaster: %w (make build makes it)", err)
	}
	return o, nil
}
