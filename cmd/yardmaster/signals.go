package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// errInterrupted is the end that the user asked for with Ctrl-C.
var errInterrupted = errors.New("interrupted")

// interruptible ends the context at the first SIGINT or SIGTERM.
func interruptible(ctx context.Context) (context.Context, func()) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// interruptedOr is errInterrupted when ctx was ended by a signal, else err.
func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// shutdown is how a server learns to stop: the first signal drains, the second
// forces.
type shutdown struct {
	// drain ends at the first signal, force at the second; both also end when
	// the parent context does.
	drain, force context.Context //nolint:containedctx // two stages of one signal
	signals      chan os.Signal
	interrupted  chan struct{} // closed if the first signal was SIGINT
	release      context.CancelFunc
	done         chan struct{}
}

// watchSignals starts to listen. Call close when the server has stopped.
func watchSignals(parent context.Context) *shutdown {
	drain, endDrain := context.WithCancel(parent)
	force, endForce := context.WithCancel(parent)
	s := &shutdown{
		drain: drain, force: force,
		signals: make(chan os.Signal, 2), interrupted: make(chan struct{}), done: make(chan struct{}),
	}
	s.release = func() { endDrain(); endForce() }
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM)
	go s.watch(endDrain, endForce)
	return s
}

func (s *shutdown) watch(endDrain, endForce context.CancelFunc) {
	defer close(s.done)
	for _, end := range []context.CancelFunc{endDrain, endForce} {
		select {
		case sig := <-s.signals:
			if sig == os.Interrupt && s.drain.Err() == nil {
				close(s.interrupted)
			}
			end()
		case <-s.force.Done():
			return
		}
	}
}

// close stops listening and waits for the listener's end.
func (s *shutdown) close() {
	signal.Stop(s.signals)
	s.release()
	<-s.done
}

// outcome is errInterrupted when the user pressed Ctrl-C and nothing else went
// wrong, else err.
func (s *shutdown) outcome(err error) error {
	select {
	case <-s.interrupted:
		if err == nil {
			return errInterrupted
		}
	default:
	}
	return err
}
