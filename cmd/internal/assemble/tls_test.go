package assemble

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

// authority signs certificates for 127.0.0.1.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(a.dir, "ca.pem"), "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate and returns the settings that use it.
func (a *authority) issue(t *testing.T, name string) config.TLS {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c := config.TLS{Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key"), CA: filepath.Join(a.dir, "ca.pem")}
	writePEM(t, c.Cert, "CERTIFICATE", der)
	writePEM(t, c.Key, "PRIVATE KEY", private)
	return c
}

func TestOnlyTheAuthoritysWorkersJoin(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	c := settings(t)
	secured := *c
	secured.TLS = ours.issue(t, "planner")
	p, err := StartPlanner(t.Context(), quiet(), &secured)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, p.Close)
	join := func(id string, security config.TLS) *Worker {
		c.Worker.Engine, c.Worker.Planners, c.Worker.ID = "scripted", []string{p.Addr()}, id
		w, err := StartWorker(t.Context(), quiet(), c.Worker, security)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	stranger, plain := join("stranger", theirs.issue(t, "stranger")), join("plain", config.TLS{})
	friend := join("friend", ours.issue(t, "friend"))
	eventually(t, "the friend has joined", func() bool { return friend.Epoch() != 0 })
	if n := len(p.View().Workers); n != 1 || stranger.Epoch() != 0 || plain.Epoch() != 0 {
		t.Errorf("%d workers joined", n)
	}
	end(t, friend.Close)
	for _, w := range []*Worker{stranger, plain} {
		end(t, w.Close)
	}
}

func TestUnusableCertificates(t *testing.T) {
	a := newAuthority(t)
	good := a.issue(t, "x")
	empty := filepath.Join(a.dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]config.TLS{
		"no certificate": {Cert: "no/such", Key: good.Key, CA: good.CA},
		"wrong key":      {Cert: good.Cert, Key: a.issue(t, "y").Key, CA: good.CA},
		"no authority":   {Cert: good.Cert, Key: good.Key, CA: "no/such"},
		"empty":          {Cert: good.Cert, Key: good.Key, CA: empty},
	} {
		if _, err := mutualTLS(c); !errors.Is(err, ErrTLS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
