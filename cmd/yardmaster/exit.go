package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/fetch"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/control"
)

// The exit codes, the same for every command.
const (
	exitOK          = 0
	exitRuntime     = 1   // it started and failed
	exitUsage       = 2   // the command line or the configuration is wrong
	exitNotFound    = 3   // the thing named does not exist
	exitUnreachable = 4   // the process to talk to does not answer
	exitPartial     = 5   // some of it was done
	exitInterrupt   = 130 // Ctrl-C
)

// codedError is an error with the exit code it means.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// usage marks an error as the command line's or the configuration's fault.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: exitUsage, err: err}
}

// exitCode derives the code from the error's chain.
func exitCode(err error) int {
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage
	}
	if fault, ok := errors.AsType[*adminError](err); ok {
		return fault.exit()
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		return exitInterrupt
	case errors.Is(err, assemble.ErrNoFleet), errors.Is(err, assemble.ErrNoHost), errors.Is(err, assemble.ErrPlaintext), errors.Is(err, assemble.ErrPlainAPI),
		errors.Is(err, assemble.ErrNoPlanners), errors.Is(err, assemble.ErrNoToken), errors.Is(err, assemble.ErrNoPeerHost),
		errors.Is(err, control.ErrPlaintext), errors.Is(err, assemble.ErrScript):
		return exitUsage
	case errors.Is(err, fetch.ErrUnknownModel), errors.Is(err, assemble.ErrModelMissing), errors.Is(err, os.ErrNotExist):
		return exitNotFound
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	default:
		return exitRuntime
	}
}

// advice adds to an error what the user can do next, where that is known.
func advice(err error) string {
	if fault, ok := errors.AsType[*adminError](err); ok {
		return fault.next()
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process has that port: stop it, or choose another one (port 0 takes any)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine has no such address: use one of its own, or :PORT for all"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return "this user may not do that: choose another folder or port, or change the permissions"
	case errors.Is(err, syscall.ENOSPC):
		return "the disk is full: free some space, or choose another folder"
	case errors.Is(err, assemble.ErrPlainAPI):
		return "only gateways should reach it: on a network that is trusted say --plain-api, else listen on 127.0.0.1"
	case errors.Is(err, assemble.ErrPlaintext), errors.Is(err, control.ErrPlaintext):
		return "give --tls-cert, --tls-key and --tls-ca, or --tls-plaintext on a network that is trusted"
	case errors.Is(err, raftstore.ErrInUse):
		return "a planner runs on that folder: stop it first, or use another folder"
	case errors.Is(err, raftstore.ErrOtherNode):
		return "start it with the --id that the folder has, or with another --data-dir"
	case errors.Is(err, raftstore.ErrRecovered):
		return "" // it says so itself
	case errors.Is(err, raftstore.ErrOtherCluster):
		return "it belongs to another cluster: use another --data-dir, or that cluster's token and addresses"
	case errors.Is(err, raftstore.ErrNewerFormat):
		return "there is no downgrade: run the release that wrote it, or a newer one"
	case errors.Is(err, raftstore.ErrDamaged):
		return "if other planners are well, empty the data folder and start with --join; else `yardmaster cluster recover` goes on " +
			"with what is whole, with --accept-loss with what can be read, and `yardmaster cluster snapshot restore` with a saved state"
	case errors.Is(err, raftstore.ErrBadArchive):
		return "save it again, or take an older one"
	case errors.Is(err, fetch.ErrDownload):
		return "check the network and pip's settings, then try again"
	default:
		return ""
	}
}

// explain is the error as the user reads it: one line, and what to do next.
// Configuration errors keep a line a problem.
func explain(err error) string {
	if _, ok := errors.AsType[*config.Error](err); ok {
		return err.Error()
	}
	text := assemble.Plain(strings.ReplaceAll(err.Error(), "\n", "; "))
	if next := advice(err); next != "" {
		text = fmt.Sprintf("%s (%s)", text, next)
	}
	return text
}
