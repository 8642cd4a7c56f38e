package assemble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/server/admin"
)

// clusterWait bounds what a cluster on a busy machine may take.
const clusterWait = 40 * time.Second

// clusterSettings are those of a member on free ports of this machine.
func clusterSettings(t *testing.T) *config.Config {
	t.Helper()
	c := settings(t)
	c.Planner.Listen, c.Gateway.Listen, c.Gateway.Admin = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Cluster.PeerListen = "127.0.0.1:0"
	c.Gateway.UnreadyTime = 0
	return c
}

// startVoters starts n planners that found a cluster, with settings that were edited.
// They end with the test.
func startVoters(t *testing.T, n int, edit ...func(*config.Config)) (planners []*Planner, settings []*config.Config) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "cluster.token")
	addrs := freePorts(t, 2*n)
	for i := range n {
		c := clusterSettings(t)
		c.Planner.ID = "planner-" + string(rune('0'+i))
		c.Planner.DataDir = filepath.Join(t.TempDir(), "state")
		c.Planner.Gateway = false
		c.Cluster.TokenFile, c.Cluster.PeerListen, c.Planner.Listen = token, addrs[i], addrs[n+i]
		if n > 1 {
			c.Cluster.Join, c.Cluster.BootstrapExpect = addrs[:n], n
			if i == 0 {
				writeToken(t, token)
			}
		}
		for _, e := range edit {
			e(c)
		}
		p, err := StartVoter(t.Context(), spoken(t), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeWithin(t, c.Planner.ID, p.Close) })
		planners, settings = append(planners, p), append(settings, c)
	}
	return planners, settings
}

func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	ports, err := planners.FreePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(clusterWait); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func scriptedAt(t *testing.T, id string, planners ...string) *Worker {
	t.Helper()
	c := settingsOfWorker(t, id, planners...)
	w, err := StartWorker(t.Context(), spoken(t), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, id, w.Close) })
	return w
}

// TestAPlannerAloneHasAClusterOfItsOwn starts one as the command does, and asks
// what its admin API says.
func TestAPlannerAloneHasAClusterOfItsOwn(t *testing.T) {
	planners, settings := startVoters(t, 1)
	p := planners[0]
	waitFor(t, "it is healthy", func() bool { status, _ := get(t, p.AdminURL()+"/admin/cluster/health"); return status == http.StatusOK })
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/admin/cluster/status", "/admin/cluster/health", "/admin/cluster/debug"} {
		if status, body := get(t, p.AdminURL()+path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	_, body := get(t, p.AdminURL()+"/admin/cluster/status")
	s := gjson.Parse(body)
	if s.Get("leader").Str != "planner-0" || s.Get("members.#").Int() != 1 || s.Get("members.0.address").Str != p.PeerAddr() ||
		!s.Get("healthy").Bool() || s.Get("tolerates").Int() != 0 {
		t.Errorf("%s", body)
	}
	if info, err := os.Stat(settings[0].Cluster.TokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: %v, %v", info, err)
	}
}

// TestAGatewaysCopyIsReplaced plays a guard that trips at a gateway: its view serves
// on, and a new copy of the state takes over.
func TestAGatewaysCopyIsReplaced(t *testing.T) {
	planners, settings := startVoters(t, 1)
	scriptedAt(t, "w0", planners[0].Addr())
	c := clusterSettings(t)
	c.Cluster.Join, c.Cluster.TokenFile = []string{planners[0].PeerAddr()}, settings[0].Cluster.TokenFile
	if c.Cluster.TokenFile == "" {
		c.Cluster.TokenFile = filepath.Join(settings[0].Planner.DataDir, config.TokenName)
	}
	operators, err := listenAdmin(t.Context(), spoken(t), c.Gateway.Admin)
	if err != nil {
		t.Fatal(err)
	}
	n, err := enter(t.Context(), spoken(t), membership{ID: "g", Admin: operators.address(), Cluster: c.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{node: n, admin: operators, log: spoken(t).Log, process: quiet(), patience: strandedFor}
	r.seen.Store(n.store())
	first := n.store()
	r.end = background(r.keep)
	waitFor(t, "the gateway knows the worker", func() bool { return r.ready() == nil && len(r.View().Workers) == 1 })
	r.end()
	if err := r.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.ready() != nil || len(r.View().Workers) != 1 || r.Events() == nil {
		t.Errorf("while a new copy is fetched: %v, %d workers", r.ready(), len(r.View().Workers))
	}
	r.end = background(r.keep)
	scriptedAt(t, "w1", planners[0].Addr())
	waitFor(t, "the new copy follows", func() bool { return r.seen.Load() != first && len(r.View().Workers) == 2 })
	if err := planners[0].store.RemoveMember(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	scriptedAt(t, "w2", planners[0].Addr())
	waitFor(t, "given up, it comes back", func() bool { return len(r.View().Workers) == 3 })
	r.close()
	waitFor(t, "the gateway has left", func() bool { _, members := planners[0].store.Members(); return len(members) == 1 })
}

// TestAGatewayFollowsPlannersFoundedAnew plays the loss of all planners with their
// disks: they are founded anew at the same place, and given the state that was
// saved. The gateway serves with what it knew until it has gone over by itself.
func TestAGatewayFollowsPlannersFoundedAnew(t *testing.T) {
	planners, settings := startVoters(t, 1)
	first, c := planners[0], settings[0]
	log := &journal{}
	w := settingsOfWorker(t, "w0", first.Addr())
	loud := quiet()
	loud.Log = slog.New(slog.NewTextHandler(log, nil))
	worker, err := StartWorker(t.Context(), loud, w.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, "w0", worker.Close) })

	g := clusterSettings(t)
	g.Cluster.Join, g.Cluster.TokenFile = []string{first.PeerAddr()}, c.Cluster.TokenFile
	n, err := enter(t.Context(), spoken(t), membership{ID: "g", Cluster: g.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{node: n, log: spoken(t).Log, process: quiet(), patience: time.Second}
	r.seen.Store(n.store())
	r.end = background(r.keep)
	t.Cleanup(r.close)
	waitFor(t, "the gateway knows the worker", func() bool { return r.ready() == nil && len(r.View().Workers) == 1 })
	if gauge := r.process.Registry.Gauge(measure.PrefixBytes); gauge.Value() == 0 {
		waitFor(t, "the gateway shows its index", func() bool { return gauge.Value() > 0 })
	}
	var saved bytes.Buffer
	if _, err := first.store.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	before := n.store().ClusterID()
	closeWithin(t, "the planner", first.Close)

	stop := background(func(ctx context.Context) {
		for ctx.Err() == nil {
			if r.ready() != nil || len(r.View().Workers) != 1 {
				t.Errorf("meanwhile: %v, %d workers", r.ready(), len(r.View().Workers))
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	c.Planner.DataDir = filepath.Join(t.TempDir(), "anew")
	again, err := StartVoter(t.Context(), spoken(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, "the planner founded anew", again.Close) })
	if _, err := again.store.RestoreSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the gateway says that the planners are others", func() bool { return r.news() != "" })
	waitFor(t, "the gateway follows them", func() bool { return r.seen.Load().ClusterID() == again.store.ClusterID() && r.news() == "" })
	if again.store.ClusterID() == before {
		t.Error("the same cluster")
	}
	waitFor(t, "the worker is in the new view under its epoch", func() bool {
		i := r.View().Find("w0")
		return i >= 0 && r.View().Workers[i].Epoch == worker.Epoch()
	})
	stop()
	if said := log.String(); strings.Contains(said, "another worker") {
		t.Error(said)
	}
}

func settingsOfWorker(t *testing.T, id string, planners ...string) *config.Config {
	t.Helper()
	c := settings(t)
	c.Worker.Engine, c.Worker.ServedName, c.Worker.ID, c.Worker.Planners = "scripted", "m", id, planners
	return c
}

// TestAClusterServes is the whole in one process: three planners, two gateways, a
// worker that knows one planner. The leader is lost, then all planners are.
func TestAClusterServes(t *testing.T) {
	planners, settings := startVoters(t, 3)
	for i, p := range planners {
		waitFor(t, settings[i].Planner.ID+" is ready", func() bool { return p.ready() == nil })
	}
	w := scriptedAt(t, "w0", planners[1].Addr())
	var gateways []*Gateway
	for range 2 {
		c := clusterSettings(t)
		c.Cluster.Join, c.Cluster.TokenFile = settings[0].Cluster.Join, settings[0].Cluster.TokenFile
		g, err := StartJoinedGateway(t.Context(), spoken(t), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeWithin(t, "gateway", g.Close) })
		waitFor(t, "the gateway is ready", func() bool { status, _ := get(t, g.URL()+"/readyz"); return status == http.StatusOK })
		gateways = append(gateways, g)
	}
	serve := func(when string) {
		t.Helper()
		for i, g := range gateways {
			if status := completion(t, g.URL(), "m"); status != http.StatusOK {
				t.Errorf("%s: gateway %d answers %d", when, i, status)
			}
		}
	}
	serve("at first")
	status := gjson.Parse(second(get(t, planners[0].AdminURL()+"/admin/cluster/status")))
	if status.Get("members.#").Int() != 5 {
		t.Errorf("%s", status.Raw)
	}
	for i, g := range gateways {
		waitFor(t, "the gateway has heard what the worker says of itself", func() bool { return hearsWorkers(t, g) })
		t.Logf("gateway %d hears workers", i)
	}
	var lost int
	waitFor(t, "somebody leads", func() bool {
		lost = slices.IndexFunc(planners, func(p *Planner) bool { return p.store.Leading() })
		return lost >= 0
	})
	closeWithin(t, "the leader", planners[lost].Close)
	serve("without the leader")
	rest := append(append([]*Planner{}, planners[:lost]...), planners[lost+1:]...)
	waitFor(t, "another leads", func() bool { return rest[0].store.Leading() || rest[1].store.Leading() })
	epoch := w.Epoch()
	waitFor(t, "the worker is held", func() bool { return len(rest[0].View().Workers) == 1 && w.Epoch() == epoch })
	for _, p := range rest {
		closeWithin(t, "a planner", p.Close)
	}
	serve("without planners")
	for _, g := range gateways {
		if status, body := get(t, g.URL()+"/readyz"); status != http.StatusOK {
			t.Errorf("without planners: %d %s", status, body)
		}
	}
}

// hearsWorkers sends a request and asks for its explanation, which shows the
// worker's own count of requests if the gateway has it.
func hearsWorkers(t *testing.T, g *Gateway) bool {
	t.Helper()
	body := strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":1}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL()+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	status, said := get(t, g.AdminURL()+"/admin/explain/"+resp.Header.Get("X-Request-Id"))
	return status == http.StatusOK && gjson.Get(said, "placements.0.candidates.0.running").Exists()
}

func second[A, B any](_ A, b B) B { return b }

func TestAMemberNeedsItsSecret(t *testing.T) {
	c := clusterSettings(t)
	c.Planner.DataDir, c.Cluster.Join = filepath.Join(t.TempDir(), "state"), []string{"127.0.0.1:1"}
	if _, err := StartVoter(t.Context(), spoken(t), c); !errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), "yardmaster cluster token new") {
		t.Errorf("a planner: %v", err)
	}
	if _, err := StartJoinedGateway(t.Context(), spoken(t), c); !errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("a gateway: %v", err)
	}
	c.Cluster.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(c.Cluster.TokenFile, []byte("ym1-nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartVoter(t.Context(), spoken(t), c); err == nil || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("a bad token: %v", err)
	}
	c.Cluster.Join = nil
	if _, err := StartJoinedGateway(t.Context(), spoken(t), c); !errors.Is(err, ErrNoPlanners) {
		t.Errorf("a gateway without planners: %v", err)
	}
}

func TestPeerAddress(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 8092} }
	for _, tt := range []struct{ ip, as, want string }{
		{"127.0.0.1", "", "127.0.0.1:8092"},
		{"::", "p1", "p1:8092"},
		{"::", "p1:9", "p1:9"},
		{"::", "fd00::7", "[fd00::7]:8092"},
		{"0.0.0.0", "", ""},
	} {
		got, err := peerAddress(at(tt.ip), tt.as)
		if got != tt.want || (tt.want == "") != errors.Is(err, ErrNoPeerHost) {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

func TestGatewayIDs(t *testing.T) {
	for _, tt := range []struct{ id, listen, cert, want string }{
		{"", "127.0.0.1:8080", "", "gateway-8080-"},
		{"", ":8080", "", "gateway-8080-"},
		{"", "10.0.0.7:80", "", "gateway-10.0.0.7-80-"},
		{"", "Edge_1:80", "", "gateway-edge-1-80-"},
		{"g1", "10.0.0.7:80", "", "g1-"},
		{"g1", "10.0.0.7:80", "g1.pem", "g1"},
	} {
		c := settings(t)
		c.Gateway.ID, c.Gateway.Listen, c.Cluster.PeerCert = tt.id, tt.listen, tt.cert
		one, two := gatewayID(c), gatewayID(c)
		if !strings.HasPrefix(one, tt.want) || (one == two) != (tt.cert != "") {
			t.Errorf("%+v: %s, %s", tt, one, two)
		}
	}
}

func TestErrorsKeepTheirText(t *testing.T) {
	for from, as := range map[error]error{
		raftstore.ErrNoLeader: admin.ErrNoLeader, raftstore.ErrRefused: admin.ErrRefused,
		raftstore.ErrAmbiguous: admin.ErrUncertain, raftstore.ErrHalfDone: admin.ErrUncertain,
		raftstore.ErrUnknownMember: admin.ErrUnknownMember,
	} {
		err := tell(errors.Join(errors.New("because"), from))
		if !errors.Is(err, as) || !errors.Is(err, from) || !strings.HasPrefix(err.Error(), "because") {
			t.Errorf("%v: %v", from, err)
		}
	}
	if tell(nil) != nil || !errors.Is(tell(context.Canceled), context.Canceled) {
		t.Error("other errors")
	}
}

// TestStatesThatDiffer must be seen, whoever is asked.
func TestStatesThatDiffer(t *testing.T) {
	node := func(id, digest string) raftstore.MemberStatus {
		return raftstore.MemberStatus{
			Member: raftstore.Member{ID: id, Voter: true}, Answered: true, Healthy: true,
			Node: raftstore.NodeStatus{Prefix: raftstore.GroupStatus{Samples: []raftstore.Sample{{Index: 8, Digest: "same"}, {Index: 16, Digest: digest}}}},
		}
	}
	s := raftstore.ClusterStatus{ClusterID: "c", Leader: "a", PrefixLeader: "a", Healthy: true, Voters: 2, Members: []raftstore.MemberStatus{node("a", "x"), node("b", "x")}}
	if out := statusOf(&s, 3); !out.Healthy || len(out.Problems) != 0 {
		t.Errorf("%+v", out)
	}
	s.Members[1] = node("b", "y")
	if out := statusOf(&s, 3); out.Healthy || len(out.Problems) != 1 || !strings.Contains(out.Problems[0], "group prefix differ at index 16 between a and b") {
		t.Errorf("%+v", out)
	}
}

// TestWhatIsWrongWithACluster: an unwell gateway and planners that are missing
// count, an even number is only worth a hint.
func TestWhatIsWrongWithACluster(t *testing.T) {
	node := func(id string, voter, healthy bool, founders int) raftstore.MemberStatus {
		return raftstore.MemberStatus{
			Member: raftstore.Member{ID: id, Voter: voter}, Answered: true, Healthy: healthy, Reason: map[bool]string{false: "silent"}[healthy],
			Node: raftstore.NodeStatus{Founders: founders},
		}
	}
	for _, tt := range []struct {
		name          string
		members       []raftstore.MemberStatus
		atLeast       int
		problem, hint string
	}{
		{"alone", []raftstore.MemberStatus{node("a", true, true, 1)}, 3, "", ""},
		{"recovered", []raftstore.MemberStatus{node("a", true, true, 3)}, 3, "1 of 3 planners", ""},
		{"content with one", []raftstore.MemberStatus{node("a", true, true, 3)}, 1, "", ""},
		{"two", []raftstore.MemberStatus{node("a", true, true, 1), node("b", true, true, 0)}, 3, "", "2 planners survive no more failures than 1"},
		{"a gateway", []raftstore.MemberStatus{node("a", true, true, 1), node("g", false, false, 0)}, 3, "g, which does not vote, is unwell: silent", ""},
	} {
		s := raftstore.ClusterStatus{ClusterID: "c", Leader: "a", PrefixLeader: "a", Healthy: true, Members: tt.members}
		for _, m := range tt.members {
			if m.Voter {
				s.Voters++
			}
		}
		out := statusOf(&s, tt.atLeast)
		if out.Healthy != (tt.problem == "") || !holds(out.Problems, tt.problem) || !holds(out.Hints, tt.hint) {
			t.Errorf("%s: %v, %q, %q", tt.name, out.Healthy, out.Problems, out.Hints)
		}
	}
}

// holds reports whether the only line has the text, or there is none when that is
// empty.
func holds(lines []string, text string) bool {
	if text == "" {
		return len(lines) == 0
	}
	return len(lines) == 1 && strings.Contains(lines[0], text)
}

// TestAMembersFolderGetsNoOtherToken: the token that would be made locks it out.
func TestAMembersFolderGetsNoOtherToken(t *testing.T) {
	planners, settings := startVoters(t, 1)
	closeWithin(t, "the planner", planners[0].Close)
	c := settings[0]
	c.Cluster.TokenFile = ""
	_, err := StartVoter(t.Context(), spoken(t), c)
	if !errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), "a member of cluster ") {
		t.Errorf("%v", err)
	}
	if !missing(filepath.Join(c.Planner.DataDir, config.TokenName)) {
		t.Error("a token was made")
	}
}

func TestTextsForOperators(t *testing.T) {
	for raw, want := range map[string]string{
		"status of p1: rpc error: code = Unavailable desc = gone": "status of p1: gone",
		"raftstore: state: identity: no file":                     "state: no file",
		"group core: disk full":                                   "group core: disk full",
	} {
		if got := Plain(raw); got != want {
			t.Errorf("%q: %q", raw, got)
		}
	}
	if got := stranger(fmt.Errorf("%w: p1 is of x", raftstore.ErrOtherCluster)); got != "p1 is of x" {
		t.Error(got)
	}
}

func writeToken(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// spoken is a process whose log is shown when the test fails.
func spoken(t *testing.T) Process {
	t.Helper()
	log := &journal{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	p := quiet()
	p.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return p
}

// journal is a buffer that several goroutines write to.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// String is the end of what was written.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 16 << 10
	return j.text.String()[max(0, j.text.Len()-most):]
}
