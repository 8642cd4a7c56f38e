package assemble

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
)

// Process is what the parts of one process share.
type Process struct {
	Version  string // of this binary
	Log      *slog.Logger
	Clock    clock.Clock
	Registry *measure.Registry
	// PolicyChild is the program, with its arguments, that tries uploaded policies in a
	// process of its own; empty tries them in this one, as only tests do.
	PolicyChild []string
	// Worker is the program, with its arguments, that runs a worker with this process's
	// settings; empty starts none.
	Worker []string
	// Output gets what such workers say, a line a Write; nil drops it. It must be safe
	// for concurrent use.
	Output io.Writer
	// Settings are the effective ones, for debug bundles; secrets are in them by
	// reference only. They may be nil.
	Settings []config.Setting
}

// NewProcess is a process on the machine's clock.
func NewProcess(version string, log *slog.Logger) Process {
	return Process{Version: version, Log: log, Clock: clock.Real{}, Registry: &measure.Registry{}}
}

// listen opens a TCP listener; the error names the setting at fault.
func listen(ctx context.Context, addr, setting string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", setting, addr, err)
	}
	return ln, nil
}

// ErrTLS means that the certificate files cannot be used.
var ErrTLS = errors.New("cannot use the certificate")

// mutualTLS loads the process's certificate for both directions; nil when none
// is configured.
func mutualTLS(c config.TLS) (*tls.Config, error) {
	if !c.Enabled() {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("tls.cert, tls.key: %w: %w", ErrTLS, err)
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fmt.Errorf("tls.ca: %w: %w", ErrTLS, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.ca: %w: %s holds no certificate", ErrTLS, c.CA)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// advertised is the address by which others reach a listener: its own, with
// the host that they know it by.
func advertised(ln net.Addr, host string) (string, error) {
	own, port, err := net.SplitHostPort(ln.String())
	if err != nil {
		return "", fmt.Errorf("assemble: %w", err)
	}
	if host != "" {
		return net.JoinHostPort(host, port), nil
	}
	if ip := net.ParseIP(own); ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("worker.advertise: %w: the worker listens on every address (%s)", ErrNoHost, ln)
	}
	return net.JoinHostPort(own, port), nil
}

// ErrPlaintext means that KV would travel beyond this machine unprotected.
var ErrPlaintext = errors.New("KV transfer needs TLS beyond loopback")

// checkPlaintext refuses an address beyond loopback without TLS.
func checkPlaintext(addr net.Addr, security config.TLS) error {
	tcp, ok := addr.(*net.TCPAddr)
	if security.Enabled() || security.Plaintext || (ok && tcp.IP.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%w: %v", ErrPlaintext, addr)
}

// ErrPlainAPI means that prompts would travel beyond this machine unprotected.
var ErrPlainAPI = errors.New("the engine's API has no TLS and no password")

// checkPlainAPI refuses an address beyond loopback that nobody asked for
// knowingly: whoever reaches the API reads prompts, and can make the worker
// exchange KV with an address of their choice.
func checkPlainAPI(addr net.Addr, allowed bool) error {
	tcp, ok := addr.(*net.TCPAddr)
	if allowed || ok && tcp.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: %v", ErrPlainAPI, addr)
}

// ErrNoHost means that others cannot know how to reach this worker.
var ErrNoHost = errors.New("say by which host name others reach this worker")

// makeFolder makes a folder that its owner alone may look into.
func makeFolder(name string) error { return os.MkdirAll(name, 0o700) }

// missing reports whether there is no such file.
func missing(name string) bool {
	_, err := os.Stat(name)
	return errors.Is(err, os.ErrNotExist)
}
