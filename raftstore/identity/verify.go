package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

var (
	// ErrForeign means that none of our authorities vouches for a certificate:
	// the node is of another cluster, or one side lacks the other's token.
	ErrForeign = errors.New("certificate of another cluster")
	// ErrWrongNode means that a certificate is a member's, and not of the node
	// that was dialled.
	ErrWrongNode = errors.New("certificate of another node")
	// ErrExpired means that a certificate has ended, by our clock.
	ErrExpired = errors.New("certificate has expired")
	// ErrNotYetValid means that a certificate begins later, by our clock: the
	// clocks of the two nodes are far apart.
	ErrNotYetValid = errors.New("certificate is not valid yet")
	// ErrNoCertificate means that the peer showed no certificate.
	ErrNoCertificate = errors.New("no certificate")
	// ErrBadCertificate means that a certificate cannot serve here: no node id,
	// or not made for the purpose.
	ErrBadCertificate = errors.New("unusable certificate")
)

// Peer is who a verified certificate says its owner is.
type Peer struct {
	ID        string // the node id
	Authority string // fingerprint of the authority that vouches for it
}

// Verify tells who the other end of a connection is. use is what the peer acts
// as: x509.ExtKeyUsageServerAuth where we dialled, x509.ExtKeyUsageClientAuth
// where we listened. Errors wrap one of the sentinels of this file.
func (i *Identity) Verify(state tls.ConnectionState, use x509.ExtKeyUsage) (Peer, error) {
	return i.material.Load().verify(state.PeerCertificates, use, i.cfg.Clock.Now())
}

func (m *material) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) (Peer, error) {
	if len(chain) == 0 {
		return Peer{}, ErrNoCertificate
	}
	leaf := chain[0]
	opts := x509.VerifyOptions{
		Roots: m.roots, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	}
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return Peer{}, explain(leaf, err, now)
	}
	if len(leaf.DNSNames) == 0 {
		return Peer{}, fmt.Errorf("%w: it names no node", ErrBadCertificate)
	}
	if err := fleet.CheckNodeID(leaf.DNSNames[0]); err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrBadCertificate, err)
	}
	root := chains[0][len(chains[0])-1]
	return Peer{ID: leaf.DNSNames[0], Authority: fingerprint(root)}, nil
}

// explain turns the library's refusal into one of ours.
func explain(leaf *x509.Certificate, err error, now time.Time) error {
	const minute = "2006-01-02 15:04 MST"
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		cert := invalid.Cert
		if cert == nil {
			cert = leaf
		}
		if now.Before(cert.NotBefore) {
			return fmt.Errorf("%w: it begins %s, our clock shows %s",
				ErrNotYetValid, cert.NotBefore.UTC().Format(minute), now.UTC().Format(minute))
		}
		return fmt.Errorf("%w: it ended %s, our clock shows %s",
			ErrExpired, cert.NotAfter.UTC().Format(minute), now.UTC().Format(minute))
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%w (node %q)", ErrForeign, firstName(leaf))
	}
	return fmt.Errorf("%w: %w", ErrBadCertificate, err)
}

func firstName(cert *x509.Certificate) string {
	if len(cert.DNSNames) == 0 {
		return ""
	}
	return cert.DNSNames[0][:min(len(cert.DNSNames[0]), fleet.MaxNodeID)]
}

// Trusts reports whether the authority of that fingerprint still vouches for
// members.
func (i *Identity) Trusts(authority string) bool {
	return slices.Contains(i.material.Load().trusted, authority)
}
