package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/identity"
)

var (
	// ErrBusy means that the peer's port has no room for another connection.
	ErrBusy = errors.New("too many connections")
	// ErrNoProtocol means that the peer does not speak the protocol: it starts,
	// it stops, or it is of another release.
	ErrNoProtocol = errors.New("protocol is not served")
	// ErrNotTLS means that the other end does not speak TLS: it is no peer port.
	ErrNotTLS = errors.New("the other end does not speak TLS")
	// ErrRefused means that the peer did not accept our certificate.
	ErrRefused = errors.New("the peer refused our certificate")
	// ErrUnanswered means that something took the connection and did not finish
	// the handshake in time.
	ErrUnanswered = errors.New("handshake did not finish in time")
)

const (
	useClient = x509.ExtKeyUsageClientAuth
	useServer = x509.ExtKeyUsageServerAuth
)

// The listener's first byte on a connection is its answer.
const (
	answerWelcome byte = iota + 1
	answerBusy
	answerNoProtocol
	answerForeign
	answerExpired
	answerNotYetValid
	answerRefused
)

// answers pairs the byte with what the dialler makes of it.
var answers = map[byte]error{
	answerBusy:        ErrBusy,
	answerNoProtocol:  ErrNoProtocol,
	answerForeign:     fmt.Errorf("%w: %w", ErrRefused, identity.ErrForeign),
	answerExpired:     fmt.Errorf("%w: %w", ErrRefused, identity.ErrExpired),
	answerNotYetValid: fmt.Errorf("%w: %w", ErrRefused, identity.ErrNotYetValid),
	answerRefused:     ErrRefused,
}

func answerTo(why error) byte {
	switch {
	case errors.Is(why, ErrBusy):
		return answerBusy
	case errors.Is(why, ErrNoProtocol), errors.Is(why, ErrClosed):
		return answerNoProtocol
	case errors.Is(why, identity.ErrForeign):
		return answerForeign
	case errors.Is(why, identity.ErrExpired):
		return answerExpired
	case errors.Is(why, identity.ErrNotYetValid):
		return answerNotYetValid
	default:
		return answerRefused
	}
}

func refusalOf(answer byte) error {
	if answer == answerWelcome {
		return nil
	}
	if err, known := answers[answer]; known {
		return err
	}
	return fmt.Errorf("%w: answer %d is of a newer release", ErrRefused, answer)
}

// DialError says why a node could not be reached, in a sentence that an
// operator can act on.
type DialError struct {
	Peer  string // empty when any member would have done
	Addr  string
	Proto string
	Err   error
}

// Unwrap gives the cause.
func (e *DialError) Unwrap() error { return e.Err }

// Error is the sentence.
func (e *DialError) Error() string {
	who := e.Addr
	if e.Peer != "" {
		who = e.Peer + " at " + e.Addr
	}
	return who + " " + e.sentence()
}

func (e *DialError) sentence() string {
	refused := errors.Is(e.Err, ErrRefused)
	switch {
	case refused && errors.Is(e.Err, identity.ErrForeign):
		return "takes this node's certificate for one of another cluster: do both use the same cluster.token-file?"
	case refused && errors.Is(e.Err, identity.ErrExpired):
		return "finds this node's certificate expired: compare the clocks of the two nodes"
	case refused && errors.Is(e.Err, identity.ErrNotYetValid):
		return "finds this node's certificate not valid yet: this node's clock is ahead of the other's"
	case refused:
		return fmt.Sprintf("refuses this node's certificate: %v", e.Err)
	case errors.Is(e.Err, identity.ErrForeign):
		return "has a certificate of another cluster: do both use the same cluster.token-file?"
	case errors.Is(e.Err, identity.ErrWrongNode):
		return fmt.Sprintf("is another node (%v): is the address right, and no node id used twice?", e.Err)
	case errors.Is(e.Err, identity.ErrExpired):
		return fmt.Sprintf("has a certificate that has ended (%v): compare the clocks, or renew the certificate", e.Err)
	case errors.Is(e.Err, identity.ErrNotYetValid):
		return fmt.Sprintf("has a certificate from the future (%v): compare the clocks of the two nodes", e.Err)
	case errors.Is(e.Err, ErrNotTLS):
		return fmt.Sprintf("is not a peer port (%v): is it what the other has as cluster.peer-listen?", e.Err)
	case errors.Is(e.Err, ErrNoProtocol):
		return fmt.Sprintf("does not serve %s: it is starting or stopping, of another release, or no peer port", e.Proto)
	case errors.Is(e.Err, ErrBusy):
		return "has no room for another connection"
	case errors.Is(e.Err, ErrUnanswered):
		return "took the connection and did not answer in time: it hangs, or something between drops packets"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "is not listening: is the node up, and the address right?"
	case isTimeout(e.Err):
		return "did not take the connection in time: is the address right, or does something between drop packets?"
	case errors.Is(e.Err, ErrClosed):
		return "was not dialled: this node's port is closed"
	default:
		return fmt.Sprintf("cannot be reached: %v", e.Err)
	}
}

// explainDial finds the sentinel for a handshake's error.
func explainDial(ctx context.Context, err error) error {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("%w: %w", ErrNotTLS, err)
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "tls: no application protocol"):
		return ErrNoProtocol
	case strings.Contains(text, "server selected unadvertised ALPN"),
		strings.Contains(text, "protocol version not supported"),
		strings.Contains(text, "server selected unsupported protocol"):
		return fmt.Errorf("%w that a node would: %w", ErrNotTLS, err)
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case isTimeout(err) || ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	default:
		return err
	}
}

func isTimeout(err error) bool {
	nerr, ok := errors.AsType[net.Error](err)
	return ok && nerr.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// explainAccept finds the sentinel for the error of a handshake with a caller.
func explainAccept(err error) error {
	text := err.Error()
	_, header := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case header:
		return fmt.Errorf("%w: %w", ErrNotTLS, err)
	case strings.Contains(text, "didn't provide a certificate"):
		return fmt.Errorf("%w: %w", identity.ErrNoCertificate, err)
	case strings.Contains(text, "client requested unsupported application protocols"):
		return fmt.Errorf("%w: %w", ErrNoProtocol, err)
	case isTimeout(err):
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	default:
		return err
	}
}

// reasonOf is the word under which a refusal is counted.
func reasonOf(why error) string {
	for _, r := range []struct {
		err  error
		word string
	}{
		{ErrNotTLS, "not_tls"},
		{identity.ErrNoCertificate, "no_certificate"},
		{identity.ErrForeign, "foreign"},
		{identity.ErrExpired, "expired"},
		{identity.ErrNotYetValid, "not_yet_valid"},
		{identity.ErrBadCertificate, "bad_certificate"},
		{ErrNoProtocol, "protocol"},
		{ErrBusy, "busy"},
		{ErrClosed, "closing"},
		{ErrUnanswered, "timeout"},
		{ErrImpostor, "impostor"},
	} {
		if errors.Is(why, r.err) {
			return r.word
		}
	}
	return "handshake"
}

// logEvery bounds what strangers can write into the log.
const logEvery = time.Second

// limiter lets one event through each logEvery.
type limiter struct{ last atomic.Int64 }

func (l *limiter) allow(now time.Time) bool {
	last := l.last.Load()
	return now.UnixNano()-last >= int64(logEvery) && l.last.CompareAndSwap(last, now.UnixNano())
}

// refuse counts a refusal and, now and then, logs it.
func (p *Port) refuse(raw net.Conn, peer string, why error) {
	if p.ctx.Err() != nil {
		return
	}
	reason := reasonOf(why)
	p.cfg.Registry.Counter(measure.PeerRefusals, reason).Inc()
	quiet := errors.Is(why, io.EOF) || errors.Is(why, syscall.ECONNRESET) // a health check of a load balancer
	if quiet || !p.refusals.allow(time.Now()) {
		p.log.Debug("refused a connection", "from", raw.RemoteAddr(), "peer", peer, "reason", reason, "error", why)
		return
	}
	p.log.Warn("refused a connection at the peer port", "from", raw.RemoteAddr(), "peer", peer, "reason", reason, "error", why)
}
