package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Embeddings pass through untouched.
func TestEmbeddings(t *testing.T) {
	r := newRig(t, rigConfig{})
	var path, body string
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		path, body = req.URL.Path, string(b)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"embedding":[1]}],"usage":{"prompt_tokens":3,"total_tokens":3}}`)
	})
	const ask = `{"model":"m","input":["a","b"],"dimensions":5}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/embeddings", strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(got), `"embedding":[1]`) {
		t.Errorf("%d %s %v", resp.StatusCode, got, err)
	}
	if path != "/v1/embeddings" || body != ask {
		t.Errorf("the engine saw %s, %s", path, body)
	}
}

// Too many stop strings are refused before any engine sees them.
func TestStopsAreLimited(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") })
	status, _, body, _ := r.chat(`{"model":"m","messages":[],"stop":[` + strings.Repeat(`"x",`, 500_000) + `"x"]}`)
	if status != http.StatusBadRequest || !strings.Contains(body, `"param":"stop"`) {
		t.Errorf("%d %s", status, body)
	}
}
