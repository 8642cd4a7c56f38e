package config

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected files")

// golden compares got with the file, or rewrites the file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := Load(Sources{File: file})
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("got %v, want an *Error", err)
			}
			got := strings.ReplaceAll(err.Error(), "testdata/bad/", "") + "\n"
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", got)
		})
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "REFERENCE.md", b.String())
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "yardmaster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func origins(e *Effective) map[string]string {
	out := map[string]string{}
	for _, s := range e.Settings {
		out[s.Key] = s.Value + " (" + s.Origin + ")"
	}
	return out
}

func TestPrecedence(t *testing.T) {
	file := write(t, "gateway:\n  listen: :1\n  max-body: 1MiB\n  idle-timeout: 9s\nworker:\n  label: [zone=a, rack=7]\n")
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	flags := Bind(fs, Use{Section: "worker"}, Use{Section: "gateway", Prefix: "gateway-"})
	if err := fs.Parse([]string{"--gateway-listen", ":3", "--exact", "--threads=4", "--label", "a=1", "--label", "b=2"}); err != nil {
		t.Fatal(err)
	}
	env := []string{"YARDMASTER_GATEWAY_LISTEN=:2", "YARDMASTER_GATEWAY_IDLE_TIMEOUT=8s", "HOME=/"}
	e, err := Load(Sources{File: file, Env: env, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	got := origins(e)
	for key, want := range map[string]string{
		"gateway.listen":       ":3 (flag --gateway-listen)",
		"gateway.idle-timeout": "8s (env YARDMASTER_GATEWAY_IDLE_TIMEOUT)",
		"gateway.max-body":     "1MiB (" + file + ":3:13)",
		"gateway.heartbeat":    "15s (default)",
		"worker.exact":         "true (flag --exact)",
		"worker.label":         "a=1,b=2 (flag --label)",
	} {
		if got[key] != want {
			t.Errorf("%s: got %s, want %s", key, got[key], want)
		}
	}
	if e.Config.Gateway.IdleTimeout != 8*time.Second || e.Config.Worker.Threads != 4 {
		t.Errorf("config: %+v", e.Config)
	}
}

func TestFaultsDoNotHideBehindStrongerSources(t *testing.T) {
	file := write(t, "gateway:\n  listen: nonsense\n")
	_, err := Load(Sources{File: file, Env: []string{"YARDMASTER_GATEWAY_LISTEN=:2", "YARDMASTER_LOG_LEVEL=loud"}})
	fault, ok := errors.AsType[*Error](err)
	if !ok || len(fault.Problems) != 2 {
		t.Fatalf("got %v, want two problems", err)
	}
}

func TestFlagFaults(t *testing.T) {
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	Bind(fs, Use{Section: "worker"})
	err := fs.Parse([]string{"--role", "cook"})
	if err == nil || !strings.Contains(err.Error(), "prefill, decode, both") {
		t.Errorf("got %v", err)
	}
}

func TestMisspeltEnvironment(t *testing.T) {
	e, err := Load(Sources{Env: []string{
		"YARDMASTER_GATEWAY_LISTN=:2",              // a slip
		"YARDMASTER_WORKER_SPEED=9",                // nothing near
		"YARDMASTER_GATEWAY_SERVICE_HOST=10.0.0.1", // a service called yardmaster-gateway
		"YARDMASTER_GATEWAY_PORT_80_TCP_PROTO=tcp", // likewise
		"YARDMASTER_PORT=tcp://10.0.0.1:80",        // what a container platform adds
		"YARDMASTER_SERVICE_HOST=10.0.0.1",         // likewise
		"YARDMASTER_TEST_MODEL=/some/where.gguf",   // not a setting
		"YARDMASTER_CONFIG=/etc/yardmaster/x.yaml", // read by the command
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"environment variable YARDMASTER_GATEWAY_LISTN is not a setting; did you mean YARDMASTER_GATEWAY_LISTEN?",
		"environment variable YARDMASTER_WORKER_SPEED is not a setting",
	}
	if diff := cmp.Diff(want, e.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestSecrets(t *testing.T) {
	file := write(t, "hunter2\n")
	t.Setenv("SOME_KEY", "swordfish")
	var s Secret
	v := secret(&s)
	for raw, want := range map[string]string{"env:SOME_KEY": "swordfish", "file:" + file: "hunter2", "": ""} {
		if err := v.set(raw); err != nil || s.Reveal() != want || v.text() != raw {
			t.Errorf("%q: got %q shown as %q, %v", raw, s.Reveal(), v.text(), err)
		}
	}
	for _, raw := range []string{"swordfish", "env:", "env:NO_SUCH_KEY", "file:/nonexistent", "vault:x"} {
		if err := v.set(raw); err == nil || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestValues(t *testing.T) {
	e, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	table := e.Config.table()
	tests := []struct {
		key, raw string
		want     string // as text; empty when it is refused
	}{
		{"gateway.max-body", "2048", "2KiB"},
		{"gateway.max-body", "1 MiB", "1MiB"},
		{"gateway.max-body", "1MB", ""},
		{"gateway.max-body", "9223372036854775807GiB", ""},
		{"gateway.max-body", "-1", ""},
		{"gateway.listen", "[::1]:0", "[::1]:0"},
		{"gateway.listen", "localhost", ""},
		{"gateway.listen", ":65536", ""},
		{"gateway.listen", ":+1", ""},
		{"gateway.listen", ":0080", ""},
		{"gateway.engine", "http://a:1, https://b", "http://a:1,https://b"},
		{"gateway.engine", "a:1", ""},
		{"gateway.engine", "http://user:pw@a", ""},
		{"gateway.engine", "http://127.0.0.1:99999", ""},
		{"gateway.engine", "http://127.0.0.1:0", ""},
		{"gateway.engine", "http://[::1]:65535/v", "http://[::1]:65535/v"},
		{"worker.threads", "1e3", ""},
		{"worker.threads", "2000", ""},
		{"worker.exact", "yes", ""},
		{"worker.label", "zone", ""},
		{"worker.planner", "", ""},
		{"worker.planner", "10.0.0.1:8090, p2:8090", "10.0.0.1:8090,p2:8090"},
		{"worker.planner", "p2", ""},
		{"worker.planner", ":8090", ""},
		{"cluster.join", "127.0.0.1:0", ""},
		{"cluster.peer-advertise", "p1.example", "p1.example"},
		{"cluster.peer-advertise", "p1.example:8092", "p1.example:8092"},
		{"cluster.peer-advertise", "fd00::7", "fd00::7"},
		{"cluster.peer-advertise", ":8092", ""},
		{"cluster.peer-advertise", "p1:port", ""},
		{"cluster.bootstrap-expect", "10", ""},
		{"cluster.raft-multiplier", "0", ""},
		{"planner.id", "planner-1.rack.7", "planner-1.rack.7"},
		{"planner.id", "Planner", ""},
		{"planner.id", "-1", ""},
		{"planner.id", strings.Repeat("p", 64), ""},
		{"gateway.id", "", ""},
		{"planner.lease-ttl", "3", ""},
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+tt.raw, func(t *testing.T) {
			s := find(table, tt.key)
			err := s.value.set(tt.raw)
			switch refused := tt.want == "" && tt.raw != ""; {
			case refused && err == nil:
				t.Errorf("accepted as %q", s.value.text())
			case !refused && (err != nil || s.value.text() != tt.want):
				t.Errorf("got %q, %v; want %q", s.value.text(), err, tt.want)
			}
		})
	}
}

func TestEditDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"listn", "listen", 1}, {"lisetn", "listen", 1}, {"role", "rule", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("%s, %s: got %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var faults problems
		table := new(Config).table()
		for key := range readFile("f.yaml", text, table, &faults) {
			if find(table, key) == nil {
				t.Errorf("accepted unknown key %q", key)
			}
		}
		if len(faults.found) > maxProblems {
			t.Errorf("%d problems", len(faults.found))
		}
	})
}
