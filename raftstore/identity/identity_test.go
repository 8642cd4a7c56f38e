package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func write(t *testing.T, name string, lines ...string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func tokenFile(t *testing.T, tokens ...string) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "token"), tokens...)
}

func open(t *testing.T, cfg Config) *Identity {
	t.Helper()
	i, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// pair is the two ends of a connection, for some seconds.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var d net.Dialer
	if a, err = d.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { _ = c.Close() })
	}
	return a, b
}

// shake runs a handshake in which client demands the peer; it gives what each
// end made of it.
func shake(t *testing.T, client, server *Identity, demand string) (atClient, atServer error) {
	t.Helper()
	a, b := pair(t)
	done := make(chan error, 1)
	go func() {
		s := tls.Server(b, server.ServerTLS("x/1"))
		err := s.HandshakeContext(t.Context())
		if err == nil {
			_, err = s.Write([]byte("!"))
		}
		_ = b.Close()
		done <- err
	}()
	c := tls.Client(a, client.ClientTLS(demand, "x/1"))
	err := c.HandshakeContext(t.Context())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	_ = a.Close()
	return err, <-done
}

func TestHandshakes(t *testing.T) {
	ours, theirs := tokenFile(t, NewToken()), tokenFile(t, NewToken())
	node := func(id, file string, skew time.Duration) *Identity {
		return open(t, Config{NodeID: id, TokenFile: file, Clock: clock.NewVirtual(start.Add(skew))})
	}
	server := node("b", ours, 0)
	tests := []struct {
		name     string
		client   *Identity
		demand   string
		atClient error // nil: any, where the other end refuses
		atServer error
	}{
		{"same token", node("a", ours, 0), "b", nil, nil},
		{"any member", node("a", ours, 0), "", nil, nil},
		{"clock half an hour off", node("a", ours, 30*time.Minute), "b", nil, nil},
		{"another node", node("a", ours, 0), "c", ErrWrongNode, nil},
		{"another token", node("a", theirs, 0), "b", ErrForeign, nil},
		{"the client's clock is two days ahead", node("a", ours, 48*time.Hour), "b", ErrExpired, nil},
		{"the client's clock is two days behind", node("a", ours, -48*time.Hour), "b", ErrNotYetValid, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			atClient, atServer := shake(t, tt.client, server, tt.demand)
			if !errors.Is(atClient, tt.atClient) || (tt.atClient == nil) != (atClient == nil) {
				t.Errorf("client: %v, want %v", atClient, tt.atClient)
			}
			if tt.atClient == nil && atServer != nil {
				t.Errorf("server: %v", atServer)
			}
		})
	}
}

// A server has to refuse as well: a client that is not ours verifies nothing.
func TestServerRefuses(t *testing.T) {
	server := open(t, Config{NodeID: "b", TokenFile: tokenFile(t, NewToken()), Clock: clock.NewVirtual(start)})
	foreign := open(t, Config{NodeID: "a", TokenFile: tokenFile(t, NewToken()), Clock: clock.NewVirtual(start)})
	careless := foreign.ClientTLS("", "x/1")
	careless.VerifyConnection = nil
	nobody := careless.Clone()
	nobody.GetClientCertificate = nil
	old := careless.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for name, conf := range map[string]*tls.Config{"foreign": careless, "no certificate": nobody, "TLS 1.2": old} {
		a, b := pair(t)
		go func() {
			c := tls.Client(a, conf)
			if c.HandshakeContext(t.Context()) == nil {
				_, _ = c.Read(make([]byte, 1))
			}
			_ = a.Close()
		}()
		if err := tls.Server(b, server.ServerTLS("x/1")).HandshakeContext(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		} else if name == "foreign" && !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close()
	}
}

// Three files on three nodes change one after the other, in the order that
// doc.go tells, and at no moment do two nodes refuse one another.
func TestRotation(t *testing.T) {
	old, fresh := NewToken(), NewToken()
	var nodes []*Identity
	for _, id := range []string{"a", "b", "c"} {
		nodes = append(nodes, open(t, Config{NodeID: id, TokenFile: tokenFile(t, old)}))
	}
	all := func(moment string) {
		t.Helper()
		for _, x := range nodes {
			for _, y := range nodes {
				if c, s := shake(t, x, y, y.NodeID()); c != nil || s != nil {
					t.Errorf("%s: %s to %s: %v, %v", moment, x.NodeID(), y.NodeID(), c, s)
				}
			}
		}
	}
	before := nodes[0].Status().Authorities
	for _, step := range [][]string{{old, fresh}, {fresh, old}, {fresh}} {
		for _, n := range nodes {
			write(t, n.cfg.TokenFile, step...)
			n.Refresh()
			all(strings.Join(step, " then ")[:10])
		}
	}
	if nodes[0].Trusts(before[0]) {
		t.Error("the old authority is still trusted")
	}
	if !nodes[0].Trusts(nodes[1].Status().Authorities[0]) {
		t.Error("the new authority is not trusted")
	}
	late := open(t, Config{NodeID: "late", TokenFile: tokenFile(t, old)})
	if err, _ := shake(t, late, nodes[0], ""); !errors.Is(err, ErrForeign) {
		t.Errorf("a node that has the old token alone: %v", err)
	}
}

func TestRenewal(t *testing.T) {
	clk := clock.NewVirtual(start)
	file := tokenFile(t, NewToken())
	i := open(t, Config{NodeID: "a", TokenFile: file, Clock: clk})
	serial := func() string {
		c, err := i.certificate()
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	first := serial()
	clk.Advance(lifetime/2 - time.Minute)
	if serial() != first {
		t.Error("renewed before half of its life")
	}
	clk.Advance(2 * time.Minute)
	second := serial()
	if second == first {
		t.Error("not renewed after half of its life")
	}
	// A laptop that slept for a week.
	clk.Advance(7 * 24 * time.Hour)
	peer := open(t, Config{NodeID: "b", TokenFile: file, Clock: clk})
	if c, s := shake(t, i, peer, "b"); c != nil || s != nil {
		t.Errorf("after a week: %v, %v", c, s)
	}
	if got := i.Status().NotAfter; !got.Equal(clk.Now().Add(lifetime)) {
		t.Errorf("ends %v", got)
	}
	// A clock that was set back must not leave a certificate of the future.
	now := clock.NewVirtual(start)
	i.cfg.Clock = now
	if c, _ := i.certificate(); c.Leaf.NotBefore.After(now.Now()) {
		t.Error("the certificate begins in the future")
	}
}

func TestRunWatches(t *testing.T) {
	clk := clock.NewVirtual(start)
	old, fresh := NewToken(), NewToken()
	file := tokenFile(t, old)
	var text syncBuffer
	i := open(t, Config{NodeID: "a", TokenFile: file, Clock: clk, Logger: slog.New(slog.NewTextHandler(&text, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { i.Run(ctx) })
	before := i.Status().Authorities[0]
	poll := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); {
			if time.Now().After(end) {
				t.Fatal(what)
			}
			clk.Advance(pollEvery)
			time.Sleep(time.Millisecond)
		}
	}
	// What makes no sense is said once, and the old stays.
	write(t, file, "rubbish")
	poll("the damaged file is not noticed", func() bool { return i.Status().Problem != nil })
	for range 5 {
		clk.Advance(pollEvery)
		time.Sleep(time.Millisecond)
	}
	if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if !errors.Is(i.Status().Problem, ErrToken) || !i.Trusts(before) {
		t.Errorf("problem %v, old trusted %v", i.Status().Problem, i.Trusts(before))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	poll("the missing file is not noticed", func() bool { return errors.Is(i.Status().Problem, os.ErrNotExist) })
	write(t, file, fresh, old)
	poll("the new file is not read", func() bool { return i.Status().Authorities[0] != before })
	poll("the problem is still there", func() bool { return i.Status().Problem == nil })
	cancel()
	done.Wait()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestCreate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data", "token")
	if _, err := Open(Config{NodeID: "a", TokenFile: file}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without Create: %v", err)
	}
	// Many at once agree on one token.
	var all sync.WaitGroup
	found := make([]*Identity, 8)
	for n := range found {
		all.Go(func() { found[n], _ = Open(Config{NodeID: "a", TokenFile: file, Create: true}) })
	}
	all.Wait()
	for _, i := range found {
		if i == nil || i.Status().Authorities[0] != found[0].Status().Authorities[0] {
			t.Fatal("not all have the same token")
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

func TestConfigReportsEverything(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		says []string
	}{
		{Config{}, []string{"not a node id", "token file is missing"}},
		{Config{NodeID: "Ä", CertFile: "x", Create: true}, []string{"not a node id", "three files", "only a token file"}},
		{Config{NodeID: "a", TokenFile: "t", CertFile: "c", KeyFile: "k", CAFile: "a"}, []string{"exclude each other"}},
	} {
		err := tt.cfg.Validate()
		for _, s := range tt.says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%+v: %v, want %q", tt.cfg, err, s)
			}
		}
	}
}

// pki is an operator's authority.
type pki struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: start.Add(-time.Hour), NotAfter: start.Add(10000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &pki{t: t, cert: cert, key: key}
}

// files issues a certificate and gives a node's configuration.
func (p *pki) files(dir, id string, clk clock.Clock, edit ...func(*x509.Certificate)) Config {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{id, "host.example"},
		NotBefore: start.Add(-time.Hour), NotAfter: start.Add(99 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, e := range edit {
		e(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, &key.PublicKey, p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := Config{
		NodeID: id, Clock: clk,
		CertFile: filepath.Join(dir, id+".crt"), KeyFile: filepath.Join(dir, id+".key"), CAFile: filepath.Join(dir, id+".ca"),
	}
	write(p.t, cfg.CertFile, encode("CERTIFICATE", der))
	write(p.t, cfg.KeyFile, encode("PRIVATE KEY", keyDER))
	write(p.t, cfg.CAFile, encode("CERTIFICATE", p.cert.Raw))
	return cfg
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestOwnAuthority(t *testing.T) {
	clk := clock.NewVirtual(start)
	op := newPKI(t)
	dir := t.TempDir()
	a, b := open(t, op.files(dir, "a", clk)), open(t, op.files(dir, "b", clk))
	if c, s := shake(t, a, b, "b"); c != nil || s != nil {
		t.Fatalf("%v, %v", c, s)
	}
	if c, _ := shake(t, a, b, "host.example"); !errors.Is(c, ErrWrongNode) {
		t.Errorf("by its second name: %v", c)
	}
	token := open(t, Config{NodeID: "c", TokenFile: tokenFile(t, NewToken()), Clock: clk})
	if c, _ := shake(t, token, b, "b"); !errors.Is(c, ErrForeign) {
		t.Errorf("a token's member: %v", c)
	}

	// A new certificate, a half-written change, another authority beside the
	// first: none needs a restart.
	end := a.Status().NotAfter
	op.files(dir, "a", clk, func(c *x509.Certificate) { c.NotAfter = start.Add(500 * time.Hour) })
	a.Refresh()
	if !a.Status().NotAfter.After(end) || a.Status().Problem != nil {
		t.Errorf("ends %v, problem %v", a.Status().NotAfter, a.Status().Problem)
	}
	other := newPKI(t)
	stranger := other.files(t.TempDir(), "a", clk)
	swap(t, stranger.KeyFile, a.cfg.KeyFile)
	a.Refresh()
	if !errors.Is(a.Status().Problem, ErrMaterial) {
		t.Errorf("a key of another certificate: %v", a.Status().Problem)
	}
	if c, s := shake(t, a, b, "b"); c != nil || s != nil {
		t.Errorf("after a bad change: %v, %v", c, s)
	}
	both := encode("CERTIFICATE", op.cert.Raw) + encode("CERTIFICATE", other.cert.Raw)
	write(t, a.cfg.CAFile, both)
	write(t, b.cfg.CAFile, both)
	swap(t, stranger.CertFile, a.cfg.CertFile)
	a.Refresh()
	b.Refresh()
	if c, s := shake(t, a, b, "b"); c != nil || s != nil || a.Status().Problem != nil {
		t.Errorf("with both authorities: %v, %v, %v", c, s, a.Status().Problem)
	}
}

func swap(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(text))
}

func TestOwnAuthorityThatCannotServe(t *testing.T) {
	clk := clock.NewVirtual(start)
	op := newPKI(t)
	for _, tt := range []struct {
		name string
		edit func(*x509.Certificate)
		want error
	}{
		{"another node's", func(c *x509.Certificate) { c.DNSNames = []string{"b"} }, ErrMaterial},
		{"no name", func(c *x509.Certificate) { c.DNSNames = nil }, ErrBadCertificate},
		{"a wildcard", func(c *x509.Certificate) { c.DNSNames = []string{"*.example"} }, ErrBadCertificate},
		{"server only", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, ErrBadCertificate},
		{"expired", func(c *x509.Certificate) { c.NotAfter = start.Add(-time.Minute) }, ErrExpired},
		{"of tomorrow", func(c *x509.Certificate) { c.NotBefore = start.Add(time.Hour) }, ErrNotYetValid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := op.files(t.TempDir(), "a", clk, tt.edit)
			if _, err := Open(cfg); !errors.Is(err, tt.want) || !errors.Is(err, ErrMaterial) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	cfg := op.files(t.TempDir(), "a", clk)
	write(t, cfg.CAFile, "no certificate")
	if _, err := Open(cfg); !errors.Is(err, ErrMaterial) {
		t.Errorf("no authorities: %v", err)
	}
}

// Nobody renews an operator's certificate but the operator, who wants to know.
func TestEndOfAnOwnCertificateIsTold(t *testing.T) {
	clk := clock.NewVirtual(start)
	i := open(t, newPKI(t).files(t.TempDir(), "a", clk))
	i.Refresh()
	if p := i.Status().Problem; p != nil {
		t.Errorf("early: %v", p)
	}
	clk.Advance(95 * time.Hour)
	i.Refresh()
	if p := i.Status().Problem; p == nil {
		t.Error("nothing is said near the end")
	}
	clk.Advance(5 * time.Hour)
	i.Refresh()
	if p := i.Status().Problem; !errors.Is(p, ErrExpired) {
		t.Errorf("after the end: %v", p)
	}
}
