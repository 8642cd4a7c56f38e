package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"time"
)

const (
	// hkdfSalt and hkdfInfo fix what a token means. Changing one is changing
	// every cluster's secret.
	hkdfSalt = "yardmaster cluster identity"
	hkdfInfo = "certificate authority key, version 1"

	// lifetime is how long a certificate that a node issued itself holds; it is
	// renewed at half of it.
	lifetime = 24 * time.Hour
	// backdate is how far behind a peer's clock may be.
	backdate = time.Hour
)

// The authority's own certificate is as good as the token, which has no end.
var (
	authorityBegin = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	authorityEnd   = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

// authority issues certificates. It is the same wherever the token is.
type authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(s secret) (*authority, error) {
	seed, err := hkdf.Key(sha256.New, s[:], []byte(hkdfSalt), hkdfInfo, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the authority's key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public, _ := key.Public().(ed25519.PublicKey)
	keyID := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "yardmaster cluster " + hex.EncodeToString(keyID[:8])},
		NotBefore:             authorityBegin,
		NotAfter:              authorityEnd,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		SubjectKeyId:          keyID[:20],
	}
	der, err := x509.CreateCertificate(nil, template, template, public, key) // ed25519 signs without chance
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

// issue makes a certificate for a node, with a key that was never used before.
func (a *authority) issue(nodeID string, now time.Time) (*tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a node key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: nodeID},
		DNSNames:     []string{nodeID},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", nodeID, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", nodeID, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, nil
}

// fingerprint names an authority by its key, in logs and in sets.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:8])
}
