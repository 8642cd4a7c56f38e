package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestARefusedFileIsRefusedInWords: a node that refuses a file before it has read it is
// heard, however long the file is.
func TestARefusedFileIsRefusedInWords(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"error":{"code":"refused","message":"ask a planner"}}`)
	}))
	defer node.Close()
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := new(app).adminAt(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.stream(t.Context(), http.MethodPost, "/", f)
		if err == nil {
			_ = resp.Body.Close()
		}
		_ = f.Close()
		if err == nil || err.Error() != "ask a planner" {
			t.Fatalf("the refusal is %v", err)
		}
	}
}
