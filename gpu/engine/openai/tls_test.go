package openai

import (
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// https:// goes over net/http, with the same headers and errors.
func TestTLS(t *testing.T) {
	var got http.Header
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}))
	defer s.Close()
	a := New(Config{})
	defer a.Close()
	w := &fleet.Worker{ID: "w", Epoch: 1, URL: s.URL}
	call := &engine.Call{RequestID: "id", Path: "/v1/x", Body: []byte("{}"), Stream: true}
	if _, err := a.Do(t.Context(), w, call); err == nil {
		t.Fatal("an unknown authority was believed")
	}
	p, err := a.pools.get(w, a.newPool)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	fresh := a.newTransport()
	fresh.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	fresh.TLSClientConfig.RootCAs = roots
	p.transport = fresh
	resp, err := a.Do(t.Context(), w, call)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != "{}" || err != nil || got.Get(engine.HeaderRequestID) != "id" || got.Get("Accept") != "text/event-stream" {
		t.Errorf("%q, %v, %v", body, err, got)
	}
	call.Path = "/cut"
	if _, err := a.Do(t.Context(), w, call); !errors.Is(err, engine.ErrBroken) {
		t.Errorf("cut: %v", err)
	}
}

// No value of a header begins another line.
func TestAppendHeaderKeepsToOneLine(t *testing.T) {
	got := string(AppendHeader(nil, "X-Peer", "a\r\nX-Other: b\x00\x7f\tc"))
	if want := "X-Peer: a  X-Other: b   c\r\n"; got != want || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}
