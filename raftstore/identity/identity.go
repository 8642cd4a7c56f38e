package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Identity is a node's certificate and its idea of who belongs to the cluster.
// It is safe for concurrent use.
type Identity struct {
	cfg      Config
	material atomic.Pointer[material]
	problem  atomic.Pointer[error] // why the files are not in use as they are now

	mu     sync.Mutex
	issued *tls.Certificate // by issuer
	issuer *authority
}

// Open reads the files, or creates the token file where it may. Nothing is
// watched before Run. Errors wrap fleet.ErrNodeID, ErrToken, ErrMaterial, a sentinel
// of the certificate or the file system's.
func Open(cfg Config) (*Identity, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if cfg.Create {
		created, err := createTokenFile(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("identity: create %s: %w", cfg.TokenFile, err)
		}
		if created {
			cfg.Logger.Info("made a cluster token; nodes that are to join need a copy of the file", "file", cfg.TokenFile)
		}
	}
	i := &Identity{cfg: cfg}
	m, err := cfg.load(nil, cfg.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	i.material.Store(m)
	if _, err := i.certificate(); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	i.warnOpenSecret()
	return i, nil
}

// warnOpenSecret does not refuse: secrets mounted by an orchestrator are often
// readable by all, inside a container that nobody else is in.
func (i *Identity) warnOpenSecret() {
	name := i.cfg.TokenFile
	if name == "" {
		name = i.cfg.KeyFile
	}
	if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o004 != 0 {
		i.cfg.Logger.Warn("everybody on this machine may read the cluster's secret", "file", name, "mode", info.Mode().Perm().String())
	}
}

// NodeID is the node's own id.
func (i *Identity) NodeID() string { return i.cfg.NodeID }

// certificate is the node's own, renewed when half of its life is over. It
// does not depend on Run: a process that was stopped for a day renews with its
// first handshake.
func (i *Identity) certificate() (*tls.Certificate, error) {
	m := i.material.Load()
	if m.issuer == nil {
		return m.fixed, nil
	}
	now := i.cfg.Clock.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.issued != nil && i.issuer == m.issuer && fresh(i.issued.Leaf, now) {
		return i.issued, nil
	}
	cert, err := m.issuer.issue(i.cfg.NodeID, now)
	if err != nil {
		return nil, err
	}
	i.issued, i.issuer = cert, m.issuer
	return cert, nil
}

// fresh also says no to a certificate from the future: the clock was set back.
func fresh(cert *x509.Certificate, now time.Time) bool {
	return now.Before(cert.NotAfter.Add(-lifetime/2)) && !now.Before(cert.NotBefore)
}

// ServerTLS is for a listener: TLS 1.3, one of protos by ALPN, and a member's
// certificate demanded. Each handshake uses what is trusted then. The caller
// owns the result.
func (i *Identity) ServerTLS(protos ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protos,
		ClientAuth: tls.RequireAnyClientCert, // VerifyConnection verifies
		// A resumed session would skip the certificate.
		SessionTicketsDisabled: true,
		Time:                   i.cfg.Clock.Now,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.certificate() },
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := i.Verify(state, x509.ExtKeyUsageClientAuth)
			return err
		},
	}
}

// ClientTLS is for dialling peerID; "" accepts any member. The caller owns the
// result.
func (i *Identity) ClientTLS(peerID, proto string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{proto},
		ServerName: peerID,
		// The names in our certificates are not those of DNS, and any of several
		// authorities may vouch: VerifyConnection does all of the verifying.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		Time:                   i.cfg.Clock.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return i.certificate()
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := i.Verify(state, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			if peerID != "" && peer.ID != peerID {
				return fmt.Errorf("%w: %q answers", ErrWrongNode, peer.ID)
			}
			return nil
		},
	}
}

// Status is what an operator may want to know of an identity.
type Status struct {
	NodeID string
	// Authorities are fingerprints of those trusted; with tokens the first one
	// issues.
	Authorities []string
	NotAfter    time.Time // end of the node's own certificate
	// Problem is why the files are not in use as they are now, or nil.
	Problem error
}

// Status reads the identity's state.
func (i *Identity) Status() Status {
	s := Status{NodeID: i.cfg.NodeID, Authorities: i.material.Load().trusted}
	if cert, err := i.certificate(); err == nil {
		s.NotAfter = cert.Leaf.NotAfter
	}
	if p := i.problem.Load(); p != nil {
		s.Problem = *p
	}
	return s
}

// pollEvery is how often the files are looked at. They are read whole: a
// mounted secret changes by a swap of links that times of files do not show.
const pollEvery = 5 * time.Second

// Run watches the files and returns with ctx.
func (i *Identity) Run(ctx context.Context) {
	timer := i.cfg.Clock.NewTimer(pollEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			i.Refresh()
			timer.Reset(pollEvery)
		}
	}
}

// Refresh looks at the files now. What makes no sense is logged once and kept
// in Status, and what was read before stays in use.
func (i *Identity) Refresh() {
	old := i.material.Load()
	m, err := i.cfg.load(old, i.cfg.Clock.Now())
	if err != nil {
		i.complain(err)
		return
	}
	if m != old {
		i.material.Store(m)
		i.cfg.Logger.Info("the cluster's secrets were read again", "authorities", m.trusted)
	}
	if err := m.nearEnd(i.cfg.Clock.Now()); err != nil {
		i.complain(err)
		return
	}
	i.problem.Store(nil)
}

func (i *Identity) complain(err error) {
	if before := i.problem.Swap(&err); before != nil && (*before).Error() == err.Error() {
		return
	}
	i.cfg.Logger.Error("the node's identity needs attention; what was last good stays in use", "error", err)
}

// nearEnd is an error when the last tenth of a certificate's life has begun
// that others must renew.
func (m *material) nearEnd(now time.Time) error {
	if m.fixed == nil {
		return nil
	}
	leaf := m.fixed.Leaf
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		return fmt.Errorf("the node's certificate ended %s: %w", end, ErrExpired)
	case left <= leaf.NotAfter.Sub(leaf.NotBefore)/10:
		return fmt.Errorf("the node's certificate ends %s and was not renewed", end)
	}
	return nil
}
