package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/server/metrics"
)

// About is what a process says of itself in a debug bundle.
type About struct {
	Version string
	// Settings are the effective settings, with secrets by reference only.
	Settings any
}

// debug sends a bundle of this node, a tar.gz with one folder by the node's name.
func (a *clusterAPI) debug(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	extend(w, stallTime)
	status := a.cluster.Status(ctx)
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition", `attachment; filename="yardmaster-debug-`+status.Node+`.tar.gz"`)
	if err := a.bundle(ctx, w, &status, time.Now()); err != nil {
		panic(http.ErrAbortHandler) // half a bundle must not look whole
	}
}

// bundle writes the archive. Each part is put together before its header, which
// tells its size.
func (a *clusterAPI) bundle(ctx context.Context, w io.Writer, status *ClusterStatus, now time.Time) error {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	for _, part := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"version.txt", func(w io.Writer) error { _, err := io.WriteString(w, a.about.Version+"\n"); return err }},
		{"status.json", indented(status)},
		{"peers.json", indented(a.cluster.Peers())},
		{"autopilot.json", indented(a.cluster.Autopilot())},
		{"settings.json", indented(a.about.Settings)},
		{"metrics.txt", a.metrics(ctx)},
		{"goroutines.txt", func(w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 1) }},
		{"heap.pb.gz", func(w io.Writer) error { return pprof.Lookup("heap").WriteTo(w, 0) }},
	} {
		var text bytes.Buffer
		if err := part.write(&text); err != nil {
			return fmt.Errorf("admin: %s: %w", part.name, err)
		}
		header := &tar.Header{Name: status.Node + "/" + part.name, Mode: 0o600, Size: int64(text.Len()), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := text.WriteTo(archive); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return packed.Close()
}

func indented(v any) func(io.Writer) error {
	return func(w io.Writer) error { return json.MarshalWrite(w, v, jsontext.WithIndent("  ")) }
}

// page is an answer that is kept instead of sent.
type page struct {
	io.Writer
	header http.Header
}

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(int) {}

// metrics writes what a scrape would get.
func (a *clusterAPI) metrics(ctx context.Context) func(io.Writer) error {
	return func(w io.Writer) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
		if err != nil {
			return err
		}
		metrics.Handler(a.registry).ServeHTTP(&page{Writer: w, header: http.Header{}}, r)
		return nil
	}
}
