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

// shutdown listens for the signals that stop a server: the first drains, the
// second forces.
type shutdown struct {
	signals     chan os.Signal
	interrupted chan struct{} // closed if the first signal was SIGINT
	cancel      context.CancelFunc
	done        chan struct{}
}

// watchSignals starts to listen. drain ends at the first signal, force at the
// second; both end with parent and with release. Call close when the server has
// stopped.
func watchSignals(parent context.Context) (drain, force context.Context, s *shutdown) {
	force, endForce := context.WithCancel(parent)
	drain, endDrain := context.WithCancel(force)
	s = &shutdown{
		signals: make(chan os.Signal, 2), interrupted: make(chan struct{}), done: make(chan struct{}),
		cancel: endForce,
	}
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM)
	go s.watch(force, endDrain, endForce)
	return drain, force, s
}

func (s *shutdown) watch(force context.Context, endDrain, endForce context.CancelFunc) {
	defer close(s.done)
	defer endDrain()
	for i, end := range []context.CancelFunc{endDrain, endForce} {
		select {
		case sig := <-s.signals:
			if sig == os.Interrupt && i == 0 {
				close(s.interrupted)
			}
			end()
		case <-force.Done():
			return
		}
	}
}

// close stops listening, ends both contexts and waits for the listener's end.
func (s *shutdown) close() {
	signal.Stop(s.signals)
	s.cancel()
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
