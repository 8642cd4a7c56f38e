package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/measure"
)

// fakeCluster does as it is told and remembers what it was asked.
type fakeCluster struct {
	status    ClusterStatus
	asked     []string
	err       error
	saved     io.Reader
	autopilot Autopilot
	room      int64 // 0 is unknown
}

func (f *fakeCluster) note(format string, args ...any) error {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
	return f.err
}

func (f *fakeCluster) Status(context.Context) ClusterStatus { return f.status }
func (f *fakeCluster) Peers() Peers {
	return Peers{Node: "p1", Index: 7, Peers: []Peer{{"p1", "h:1", true}}}
}
func (f *fakeCluster) Add(_ context.Context, p Peer) error       { return f.note("add %v", p) }
func (f *fakeCluster) Remove(_ context.Context, id string) error { return f.note("remove %s", id) }
func (f *fakeCluster) StepDown(context.Context) (string, error)  { return "p2", f.note("step down") }
func (f *fakeCluster) Autopilot() Autopilot                      { return f.autopilot }
func (f *fakeCluster) Transfer(_ context.Context, id string) (string, error) {
	return id, f.note("transfer %s", id)
}

func (f *fakeCluster) Save(_ context.Context, w io.Writer) error {
	if err := f.note("save"); err != nil {
		return err
	}
	_, err := io.Copy(w, f.saved)
	return err
}

func (f *fakeCluster) Restore(_ context.Context, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("not read: %w", err)
	}
	return f.note("restore %s", b)
}

func (f *fakeCluster) Room() (bytes int64, known bool) { return f.room, f.room != 0 }

func (f *fakeCluster) SetAutopilot(_ context.Context, a Autopilot) error {
	return f.note("autopilot %+v", a)
}

var someStatus = ClusterStatus{
	ClusterID: "c", Node: "p1", Leader: "p2", PrefixLeader: "p2", FeatureLevel: 2, Healthy: true, Tolerates: 1,
	Members: []Member{{ID: "p1", Voter: true, Reached: true, Healthy: true, Core: &GroupStatus{State: "follower", Term: 3}}},
}

// ask sends one request to the API of f and returns status and body.
func ask(t *testing.T, f *fakeCluster, method, path, body string, headers ...string) (code int, text string) {
	t.Helper()
	var part Parts
	part.Registry = &measure.Registry{}
	part.About = About{Version: "v1", Settings: map[string]string{"cluster.join": "h:1"}}
	part.Cluster = f
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler(part).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestClusterPaths(t *testing.T) {
	for _, tt := range []struct {
		method, path, body string
		code               int
		asked              string
		says               string
	}{
		{"GET", "/admin/cluster/status", "", 200, "", `"leader":"p2"`},
		{"GET", "/admin/cluster/health", "", 200, "", `"tolerates":1`},
		{"GET", "/admin/cluster/peers", "", 200, "", `"index":7`},
		{"GET", "/admin/cluster/autopilot", "", 200, "", `"stable_after_ms":9`},
		{"POST", "/admin/cluster/peers", `{"id":"p9","address":"h:9","voter":true}`, 200, "add {p9 h:9 true}", `"peers"`},
		{"POST", "/admin/cluster/peers", `{"id":"p9","addr":"h:9"}`, 400, "", `"invalid"`},
		{"POST", "/admin/cluster/peers", `{`, 400, "", `"invalid"`},
		{"DELETE", "/admin/cluster/peers/p%2F9", "", 200, "remove p/9", `"peers"`},
		{"POST", "/admin/cluster/transfer-leader", `{"id":"p2"}`, 200, "transfer p2", `"leader":"p2"`},
		{"POST", "/admin/cluster/transfer-leader", "", 200, "transfer ", `"leader":""`},
		{"POST", "/admin/cluster/step-down", "", 200, "step down", `"leader":"p2"`},
		{
			"PUT", "/admin/cluster/autopilot", `{"cleanup_dead_voters":true}`, 200,
			"autopilot {CleanupDeadVoters:true DeadAfterMS:0 MinVoters:0 MaxLag:0 StableAfterMS:9}", `"stable_after_ms":9`,
		},
		{"POST", "/admin/cluster/snapshot", "state", 200, "restore state", `"peers"`},
		{"PATCH", "/admin/cluster/peers", "", 405, "", ""},
		{"GET", "/admin/cluster/nothing", "", 404, "", ""},
	} {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			f := &fakeCluster{status: someStatus, autopilot: Autopilot{StableAfterMS: 9}}
			code, body := ask(t, f, tt.method, tt.path, tt.body, Intent, "1")
			if code != tt.code || !strings.Contains(body, tt.says) {
				t.Errorf("%d %s; want %d with %s", code, body, tt.code, tt.says)
			}
			if got := strings.Join(f.asked, "; "); got != tt.asked {
				t.Errorf("asked %q, want %q", got, tt.asked)
			}
		})
	}
}

func TestAnUnhealthyClusterFailsTheProbe(t *testing.T) {
	f := &fakeCluster{status: ClusterStatus{Problems: []string{"no leader"}}}
	if code, body := ask(t, f, "GET", "/admin/cluster/health", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "no leader") {
		t.Errorf("%d %s", code, body)
	}
}

func TestErrorsOfTheCluster(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   string
	}{
		{ErrNoLeader, 503, "no_leader"},
		{ErrUnknownMember, 404, "not_found"},
		{ErrRefused, 409, "refused"},
		{ErrConflict, 409, "conflict"},
		{ErrUnknownTenant, 404, "not_found"},
		{ErrBusy, 503, "busy"},
		{ErrInvalid, 400, "invalid"},
		{ErrUncertain, 502, "uncertain"},
		{context.DeadlineExceeded, 504, "timeout"},
		{errors.Join(context.DeadlineExceeded, ErrUncertain), 502, "uncertain"},
		{errors.New("other"), 500, "internal"},
	} {
		f := &fakeCluster{err: fmt.Errorf("because: %w", tt.err)}
		status, body := ask(t, f, "DELETE", "/admin/cluster/peers/x", "", Intent, "1")
		var told Fault
		if err := json.Unmarshal([]byte(body), &told); err != nil || status != tt.status || told.Error.Code != tt.code || !strings.HasPrefix(told.Error.Message, "because") {
			t.Errorf("%v: %d %s", tt.err, status, body)
		}
	}
}

// TestPagesChangeNothing sends what a page in a browser on this machine could.
func TestPagesChangeNothing(t *testing.T) {
	for name, headers := range map[string][]string{
		"a form":                   {"Content-Type", "application/x-www-form-urlencoded"},
		"a script's simple fetch":  {"Content-Type", "text/plain", "Origin", "https://evil.example"},
		"another site, by browser": {Intent, "1", "Sec-Fetch-Site", "cross-site"},
		"another port, by browser": {Intent, "1", "Sec-Fetch-Site", "same-site"},
		"another origin":           {Intent, "1", "Origin", "http://localhost:3000"},
		"nothing at all":           nil,
		"a header that says no":    {Intent, "0"},
		"a header that denies":     {Intent, " False"},
	} {
		for _, what := range [][2]string{{"POST", "/admin/cluster/step-down"}, {"DELETE", "/admin/cluster/peers/p1"}, {"PUT", "/admin/cluster/autopilot"}, {"POST", "/admin/cluster/snapshot"}} {
			f := &fakeCluster{}
			if code, body := ask(t, f, what[0], what[1], "{}", headers...); code != http.StatusForbidden || len(f.asked) > 0 {
				t.Errorf("%s, %v: %d %s, asked %v", name, what, code, body, f.asked)
			}
		}
	}
}

// A state that there is no room for is refused with the lengths, before anything is
// read where its length was told, and nothing is restored.
func TestRestoreLooksForRoom(t *testing.T) {
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		length int64 // as told
		body   int   // bytes
		room   int64
		code   int
		says   string
		asked  int
	}{
		"fits":                 {3 * mib, 3 * mib, 3 * mib, 200, `"peers"`, 1},
		"no disk":              {mib, mib, 0, 200, `"peers"`, 1},
		"told, too long":       {3 * mib, 0, 2 * mib, 507, "room to restore a saved state of 2.0 MiB, and this one has 3.0 MiB: free some space", 0},
		"not told, too long":   {-1, 3 * mib, 2 * mib, 507, "this one has more", 0},
		"not told, fits":       {-1, mib, 2 * mib, 200, `"peers"`, 1},
		"the disk is full":     {mib, 0, -5, 507, "a saved state of 0.0 MiB", 0},
		"longer than any":      {maxSnapshot + 1, 0, 1 << 50, 413, "at most 4096 MiB", 0},
		"longer than any, too": {maxSnapshot + 1, 0, 0, 413, "at most 4096 MiB", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeCluster{room: tt.room}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/admin/cluster/snapshot", bytes.NewReader(make([]byte, tt.body)))
			r.ContentLength = tt.length
			r.Header.Set(Intent, "1")
			w := httptest.NewRecorder()
			Handler(Parts{Registry: &measure.Registry{}, Cluster: f}).ServeHTTP(w, r)
			if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.says) || len(f.asked) != tt.asked {
				t.Errorf("%d %s, %d restored", w.Code, w.Body, len(f.asked))
			}
		})
	}
}

// broken ends with an error after some text.
type broken struct{ text io.Reader }

func (b *broken) Read(p []byte) (int, error) {
	if n, err := b.text.Read(p); err == nil {
		return n, nil
	}
	return 0, errors.New("the disk is gone")
}

func TestASnapshotThatBreaksOffIsNoWhole(t *testing.T) {
	f := &fakeCluster{}
	server := httptest.NewServer(Handler(Parts{Cluster: f, Registry: &measure.Registry{}}))
	defer server.Close()
	download := func() ([]byte, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/admin/cluster/snapshot", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close() //nolint:errcheck // read only
		return io.ReadAll(resp.Body)
	}
	whole := strings.Repeat("state ", 100_000)
	f.saved = strings.NewReader(whole)
	if got, err := download(); err != nil || string(got) != whole {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	f.err = ErrNoLeader
	if got, err := download(); err != nil || !strings.Contains(string(got), "no_leader") {
		t.Errorf("none at all: %s, %v", got, err)
	}
	f.err = nil
	f.saved = &broken{strings.NewReader(whole)}
	if got, err := download(); err == nil {
		t.Errorf("a broken one came whole: %d bytes", len(got))
	}
}

func TestDebugBundle(t *testing.T) {
	code, body := ask(t, &fakeCluster{status: someStatus}, "GET", "/admin/cluster/debug", "")
	packed, err := gzip.NewReader(strings.NewReader(body))
	if code != 200 || err != nil {
		t.Fatalf("%d, %v", code, err)
	}
	archive := tar.NewReader(packed)
	var names []string
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %d bytes, %v", h.Name, len(text), err)
		}
		if h.Name == "p1/status.json" && !bytes.Contains(text, []byte(`"leader": "p2"`)) {
			t.Errorf("%s", text)
		}
		if h.Name == "p1/metrics.txt" && !bytes.Contains(text, []byte("go_goroutines")) {
			t.Errorf("%s", text)
		}
		names = append(names, h.Name)
	}
	slices.Sort(names)
	want := []string{
		"p1/autopilot.json", "p1/goroutines.txt", "p1/heap.pb.gz", "p1/metrics.txt", "p1/peers.json", "p1/settings.json",
		"p1/status.json", "p1/version.txt",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
