// Command yardmaster runs every role of Yardmaster: the planner, the gateway,
// the worker, and all of them at once on one machine (dev). It is also the
// command line to a running system: noun, then verb.
//
// Each file holds one noun. What a command does is built from the rooms by
// cmd/internal/assemble; settings come from cmd/internal/config.
package main

import (
	"context"
	"os"

	"github.com/yardmaster/yardmaster/cmd/internal/timerslack"
)

// version and commit are set by the linker.
var (
	version = "devel"
	commit  = ""
)

func main() {
	a := &app{raise: timerslack.Raise, in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(), version: version, commit: commit}
	os.Exit(a.run(context.Background(), os.Args[1:]))
}
