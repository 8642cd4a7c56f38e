package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/project"
)

// blocks are the console blocks of a text, with the rest of their first line.
var blocks = regexp.MustCompile("(?s)```console([^\n]*)\n(.*?)```")

// TestTutorialRuns types what plugins-sdk/TUTORIAL.md says behind each $, in order; where
// a block is marked so, at a cluster that runs.
func TestTutorialRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster and replays a trace")
	}
	dir := t.TempDir()
	if why := project.Lacking(dir, bind.C); why != "" {
		t.Skip(why)
	}
	text, err := os.ReadFile("../../../plugins-sdk/TUTORIAL.md")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil { // dev is to have it
		t.Fatal(err)
	}
	_, recipe, ok := strings.Cut(string(text), "\nyardmaster dev ")
	if recipe, _, _ = strings.Cut(recipe, "\n"); !ok {
		t.Fatal("the tutorial starts no cluster")
	}
	d := startDev(t, append(strings.Fields(recipe), "--gateway-admin", address)...)
	ran := 0
	for _, block := range blocks.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[2]) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok {
				continue
			}
			words := strings.Fields(command)
			switch {
			case words[0] == "cd":
				dir = filepath.Join(dir, words[1])
				continue
			case words[0] == "git":
				if out, err := inFolder(t, dir, words); err != nil {
					t.Fatalf("%s: %v\n%s", command, err, out)
				}
				continue
			case words[0] != "yardmaster":
				t.Fatalf("%q: a test cannot run that", command)
			case strings.TrimSpace(block[1]) == "cluster":
				words = append(words, "--admin", address)
			case words[2] == "simulate":
				words = append(words, "--requests", "200") // all would take longer, and show no more here
			}
			if out, err := inFolder(t, dir, append([]string{binary}, words[1:]...)); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			ran++
			if words[2] == "promote" {
				decides(t, d, "blue-router@0.1.0")
			}
		}
	}
	if ran < 10 {
		t.Errorf("%d commands were found", ran)
	}
}

// inFolder runs a command in a folder.
func inFolder(t *testing.T, dir string, words []string) ([]byte, error) {
	c := exec.CommandContext(t.Context(), words[0], words[1:]...)
	c.Dir = dir
	return c.CombinedOutput()
}

// decides checks that a request is placed by a policy.
func decides(t *testing.T, d *dev, policy string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/completions", strings.NewReader(`{"model":"`+d.model+`","max_tokens":1,"prompt":"Hello!"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-yardmaster-explain", "1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if placement := resp.Header.Get("x-yardmaster-path"); !strings.Contains(placement, "policy="+policy+"; policy-index=") {
		t.Errorf("placed by %q, not %s", placement, policy)
	}
}
