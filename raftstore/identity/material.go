package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/files"
)

// ErrMaterial means that the files of an operator's own authority do not go
// together or do not name this node.
var ErrMaterial = errors.New("certificate files are unusable")

// material is what the files said when they were last good. It is immutable.
type material struct {
	digest  [sha256.Size]byte // of the files' bytes
	issuer  *authority        // nil with an operator's own authority
	fixed   *tls.Certificate  // its certificate for this node
	roots   *x509.CertPool
	trusted []string // fingerprints of the roots, the issuing one first
}

// load reads the files. It gives back old if they have not changed.
func (c Config) load(old *material, now time.Time) (*material, error) {
	names := []string{c.TokenFile}
	if c.TokenFile == "" {
		names = []string{c.CertFile, c.KeyFile, c.CAFile}
	}
	sum := sha256.New()
	texts := make([][]byte, len(names))
	for i, name := range names {
		text, err := files.ReadBounded(name, maxFile)
		if err != nil {
			return nil, err
		}
		texts[i] = text
		_, _ = fmt.Fprintf(sum, "%d:", len(text)) // a hash takes all
		sum.Write(text)
	}
	digest := [sha256.Size]byte(sum.Sum(nil))
	if old != nil && old.digest == digest {
		return old, nil
	}
	var m *material
	var err error
	if c.TokenFile != "" {
		m, err = fromTokens(texts[0])
		err = wrapFile(c.TokenFile, err)
	} else {
		m, err = fromPEM(c.NodeID, texts[0], texts[1], texts[2], now)
	}
	if err != nil {
		return nil, err
	}
	m.digest = digest
	return m, nil
}

func wrapFile(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func fromTokens(text []byte) (*material, error) {
	secrets, err := parseTokens(text)
	if err != nil {
		return nil, err
	}
	m := &material{roots: x509.NewCertPool()}
	for _, s := range secrets {
		a, err := newAuthority(s)
		if err != nil {
			return nil, err
		}
		if m.issuer == nil {
			m.issuer = a
		}
		m.trust(a.cert)
	}
	return m, nil
}

func (m *material) trust(cert *x509.Certificate) {
	if f := fingerprint(cert); !slices.Contains(m.trusted, f) {
		m.trusted = append(m.trusted, f)
	}
	m.roots.AddCert(cert)
}

func fromPEM(nodeID string, certText, keyText, caText []byte, now time.Time) (*material, error) {
	pair, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMaterial, err)
	}
	m := &material{fixed: &pair, roots: x509.NewCertPool()}
	for rest := caText; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: authority: %w", ErrMaterial, err)
		}
		m.trust(ca)
	}
	if len(m.trusted) == 0 {
		return nil, fmt.Errorf("%w: the file of authorities holds no certificate", ErrMaterial)
	}
	return m, m.checkOwn(nodeID, now)
}

// checkOwn makes sure that peers would accept the certificate, so that a
// mistake shows here and not in every peer's log.
func (m *material) checkOwn(nodeID string, now time.Time) error {
	chain, err := parseChain(m.fixed.Certificate)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMaterial, err)
	}
	m.fixed.Leaf = chain[0]
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		peer, err := m.verify(chain, use, now)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMaterial, err)
		}
		if peer.ID != nodeID {
			return fmt.Errorf("%w: the certificate is of node %q, this is %q", ErrMaterial, peer.ID, nodeID)
		}
	}
	return nil
}

func parseChain(raw [][]byte) ([]*x509.Certificate, error) {
	chain := make([]*x509.Certificate, len(raw))
	for i, der := range raw {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain[i] = cert
	}
	return chain, nil
}

// createTokenFile writes a file with a fresh token, whole or not at all. It
// leaves a file that is there alone.
func createTokenFile(name string) (created bool, err error) {
	if _, err := os.Stat(name); err == nil || !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return false, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".token-*") // mode 0600
	if err != nil {
		return false, err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	var text bytes.Buffer
	fmt.Fprintln(&text, NewToken())
	_, err = tmp.Write(text.Bytes())
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return false, err
	}
	// Unlike a rename, a link never replaces another's file.
	if err := os.Link(tmp.Name(), name); err != nil && !errors.Is(err, os.ErrExist) {
		return false, err
	} else if err != nil {
		return false, nil
	}
	return true, files.SyncFolder(filepath.Dir(name))
}
