package raftstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
)

// victimEnv makes the test binary a process that registers workers in the
// named directory until it is killed.
const victimEnv = "YARDMASTER_RAFTSTORE_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		registerForEver(dir)
	}
	flag.Parse()
	// Clusters wait much more than they compute.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func testConfig(dir string) Config {
	return Config{
		Dir: dir, InMemory: dir == "", NodeID: "n1", Registry: &measure.Registry{},
		Heartbeat: 50 * time.Millisecond, Lease: 25 * time.Millisecond, WriteDeadline: 20 * time.Second,
	}
}

func openLeading(t *testing.T, cfg Config) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	if err := s.WaitLeader(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// closedView is the fleet in a store that it closes. Digests are no measure here:
// each opening records itself.
func closedView(t *testing.T, s *Store) *fleet.View {
	t.Helper()
	closeStore(t, s)
	return s.View()
}

// sameFleet compares what views contain.
func sameFleet(a, b *fleet.View) bool { return a.Index == b.Index && cmp.Equal(a.Workers, b.Workers) }

func worker(id, incarnation string) fleet.Worker {
	return fleet.Worker{
		ID: fleet.WorkerID(id), Incarnation: incarnation, Role: fleet.RoleBoth, Engine: "cpu",
		Models: []string{"m"}, URL: "http://127.0.0.1:1",
	}
}

func register(t *testing.T, s *Store, id string) planner.Result {
	t.Helper()
	res, err := s.Propose(t.Context(), planner.RegisterWorker{Worker: worker(id, "a")})
	if err != nil || res.Err() != nil {
		t.Fatal(res, err)
	}
	return res
}

func TestStateSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	s := openLeading(t, testConfig(dir))
	first := register(t, s, "w1")
	if v := s.View(); v.Current("w1", first.Epoch) < 0 {
		t.Fatalf("w1 of epoch %d is not in the view: %+v", first.Epoch, v.Workers)
	}
	cluster, want := s.ClusterID(), closedView(t, s)

	s = openLeading(t, testConfig(dir))
	if got := closedView(t, s); !sameFleet(got, want) || s.ClusterID() != cluster {
		t.Fatalf("after reopening: %+v of cluster %s, want %+v of %s", got, s.ClusterID(), want, cluster)
	}

	s = openLeading(t, testConfig(dir))
	if again := register(t, s, "w1"); again.Epoch != first.Epoch || again.Changed {
		t.Errorf("registering again after a restart: %+v; want epoch %d unchanged", again, first.Epoch)
	}
	// What a snapshot and the log after it hold is the same state.
	register(t, s, "w2")
	if err := s.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	register(t, s, "w3")
	want = closedView(t, s)
	if files, err := filepath.Glob(filepath.Join(dir, "core", "snapshots", "*", "state.bin")); err != nil || len(files) != 1 {
		t.Errorf("snapshot files %v, %v", files, err)
	}
	s = openLeading(t, testConfig(dir))
	if got := closedView(t, s); !sameFleet(got, want) {
		t.Errorf("%+v after snapshot and log, want %+v", got, want)
	}
}

func TestProposals(t *testing.T) {
	s := openLeading(t, testConfig(""))
	id := NewRequestID()
	first, err := s.ProposeAs(t.Context(), id, planner.RegisterWorker{Worker: worker("w", "a")})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.ProposeAs(t.Context(), id, planner.RegisterWorker{Worker: worker("w", "b")}); err != nil || again != first {
		t.Errorf("a repeated request got %+v, %v; want %+v", again, err, first)
	}
	if _, err := s.Propose(t.Context(), planner.RegisterWorker{}); !errors.Is(err, planner.ErrInvalid) {
		t.Errorf("an empty worker: %v", err)
	}
	if res, err := s.Propose(t.Context(), planner.ExpireWorker{ID: "w", Epoch: 99}); err != nil || !errors.Is(res.Err(), planner.ErrStaleEpoch) {
		t.Errorf("a stale epoch: %+v, %v", res, err)
	}
	if v, err := s.Read(t.Context(), Linearizable()); err != nil || v.Current("w", first.Epoch) < 0 {
		t.Errorf("Read = %+v, %v", v, err)
	}
	st := s.Status()
	if !st.Core.Leading || st.Core.State != "leader" || st.Core.Leader != "n1" || st.ClusterID == "" || st.Fault != "" {
		t.Errorf("status %+v", st)
	}
	closeStore(t, s)
	if _, err := s.Propose(t.Context(), planner.ExpireWorker{ID: "w", Epoch: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if s.View().Find("w") < 0 {
		t.Error("the view is gone with the node")
	}
}

func TestDirectoryRefusals(t *testing.T) {
	dir := t.TempDir()
	s := openLeading(t, testConfig(dir))
	try := func(edit func(*Config)) error {
		cfg := testConfig(dir)
		edit(&cfg)
		s, err := Open(t.Context(), cfg)
		if err == nil {
			closeStore(t, s)
		}
		return err
	}
	same := func(*Config) {}
	if err := try(same); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	closeStore(t, s)
	if err := try(func(c *Config) { c.NodeID = "n2" }); !errors.Is(err, ErrOtherNode) {
		t.Errorf("other node: %v", err)
	}
	if err := try(func(c *Config) { c.ClusterID = "other" }); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("other cluster: %v", err)
	}
	if err := try(func(c *Config) { c.Heartbeat, c.Lease = 1, 2 }); err == nil || !strings.Contains(err.Error(), "timer") {
		t.Errorf("bad timers: %v", err)
	}
	meta := filepath.Join(dir, "meta.json")
	for _, tt := range []struct {
		content string
		want    error
	}{
		{`{"format":3,"cluster_id":"x","node_id":"n1"}`, ErrNewerFormat},
		{`{"format":1,"cluster_id":"`, ErrDamaged},
		{`{}`, ErrDamaged},
		{"", ErrDamaged},
	} {
		if err := os.WriteFile(meta, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := try(same); !errors.Is(err, tt.want) {
			t.Errorf("meta.json %q: %v, want %v", tt.content, err, tt.want)
		}
	}
	if err := os.Remove(meta); err != nil {
		t.Fatal(err)
	}
	if err := try(same); !errors.Is(err, ErrDamaged) {
		t.Errorf("a log without meta.json: %v", err)
	}
}

// A meta.json put beside the log of another cluster does not lead.
func TestLogOfAnotherCluster(t *testing.T) {
	dir := t.TempDir()
	closeStore(t, openLeading(t, testConfig(dir)))
	b, err := json.Marshal(nameplate{Format: format, ClusterID: "other", NodeID: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "meta.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	cfg := testConfig(dir)
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.WaitLeader(ctx); err == nil {
		t.Error("leads another cluster's log")
	}
	closeStore(t, s)
	if !strings.Contains(logged.String(), ErrOtherCluster.Error()) {
		t.Errorf("the log does not say why:\n%s", logged.String())
	}
}

// A flipped byte in the log is refused by name, or cut off where it cannot be
// told from a write that a crash tore. It never becomes a fact.
func TestDamagedLog(t *testing.T) {
	dir := t.TempDir()
	s := openLeading(t, testConfig(dir))
	for i := range 20 {
		register(t, s, "w"+strconv.Itoa(i))
	}
	intact := s.View()
	closeStore(t, s)
	segments, err := filepath.Glob(filepath.Join(dir, "core", "wal", "*.wal"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	good, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	used, refused := len(bytes.TrimRight(good, "\x00")), 0
	for i := range 12 {
		bad := bytes.Clone(good)
		at := used*i/12 + rand.IntN(used/12)
		bad[at] ^= byte(1 + rand.IntN(255))
		if err := os.WriteFile(segments[0], bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openDamaged(t, dir)
		if err != nil {
			refused++
		}
		if s == nil {
			continue
		}
		for _, w := range s.View().Workers {
			if j := intact.Current(w.ID, w.Epoch); j < 0 || !cmp.Equal(intact.Workers[j], w) {
				t.Errorf("byte %d made a worker of its own: %+v", at, w)
			}
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// openDamaged opens a store and closes it. The store is nil if it did not open.
func openDamaged(t *testing.T, dir string) (*Store, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := Open(ctx, testConfig(dir))
	if err != nil {
		return nil, err
	}
	err = s.WaitLeader(ctx)
	bound, done := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer done()
	if closed := s.Close(bound); closed != nil && err == nil {
		t.Errorf("Close: %v", closed)
	}
	return s, err
}

// A process that is killed loses nothing it has acknowledged.
func TestKilledProcessKeepsItsWord(t *testing.T) {
	dir := t.TempDir()
	for round := range 4 {
		acknowledged := killVictim(t, dir)
		if len(acknowledged) == 0 {
			t.Fatal("nothing was acknowledged: the test tests nothing")
		}
		s := openLeading(t, testConfig(dir))
		for id, epoch := range acknowledged {
			// The id may have gone to a later incarnation whose acknowledgement the
			// kill cut off.
			if at := s.View().Find(id); at < 0 || s.View().Workers[at].Epoch < epoch {
				t.Fatalf("round %d: worker %s of epoch %d was acknowledged and is lost", round, id, epoch)
			}
		}
		want := closedView(t, s)
		again := openLeading(t, testConfig(dir))
		if got := closedView(t, again); !sameFleet(got, want) {
			t.Fatalf("round %d: two openings, %+v and %+v", round, want, got)
		}
	}
}

// killVictim runs a victim for a random while, kills it and returns what it had
// acknowledged: epochs by worker.
func killVictim(t *testing.T, dir string) map[fleet.WorkerID]fleet.Epoch {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[fleet.WorkerID]fleet.Epoch{}
	limit := 1 + rand.IntN(60)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		id, epoch, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(epoch, 10, 64)
		if err != nil {
			t.Fatalf("the victim said %q", lines.Text())
		}
		acknowledged[fleet.WorkerID(id)] = fleet.Epoch(n)
		if len(acknowledged) == limit {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // killed
	return acknowledged
}

// registerForEver is the victim: it registers new incarnations of ever new
// workers and prints each when it is acknowledged.
func registerForEver(dir string) {
	ctx := context.Background()
	s, err := Open(ctx, testConfig(dir))
	if err == nil {
		err = s.WaitLeader(ctx)
	}
	for i := 0; err == nil; i++ {
		var res planner.Result
		id := "w" + strconv.Itoa(i%100)
		if res, err = s.Propose(ctx, planner.RegisterWorker{Worker: worker(id, NewRequestID().String())}); err == nil {
			_, err = fmt.Fprintln(os.Stdout, id, uint64(res.Epoch))
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func BenchmarkProposeOnDisk(b *testing.B) {
	ctx := b.Context()
	s, err := Open(ctx, testConfig(b.TempDir()))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx)) }()
	if err := s.WaitLeader(ctx); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Propose(ctx, planner.DrainWorker{ID: "none", Epoch: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
