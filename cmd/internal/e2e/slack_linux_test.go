package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/cmd/internal/timerslack"
)

// TestAPlannerMayBeWokenLate: the process that was started serves, with the slack and
// under its own name.
func TestAPlannerMayBeWokenLate(t *testing.T) {
	logs := &journal{}
	c := exec.CommandContext(t.Context(), binary, "planner", "--data-dir", filepath.Join(t.TempDir(), "state"), "--gateway=false",
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--gateway-admin", "127.0.0.1:0")
	c.Stderr = logs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	eventually(t, "the planner is ready", func() bool { return logs.says("planner ready") })
	read := func(file string) (string, error) {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), file))
		return strings.TrimSpace(string(b)), err
	}
	if name, err := read("comm"); err != nil || name == "" || !strings.HasPrefix(filepath.Base(binary), name) {
		t.Errorf("the process is called %q, %v", name, err)
	}
	ours, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0) // it had as much when it was started
	if err != nil {
		t.Fatal(err)
	}
	environ, err := read("environ")
	if again := strings.Contains(environ, "TIMERSLACK_BEFORE="); err != nil || again != (ours < int(timerslack.Ours)) {
		t.Errorf("it was started again: %v, %v, with %d ns of slack before", again, err, ours)
	}
	// The slack itself, which TestRaise of timerslack sees for itself, is for the
	// superuser to read.
	slack, err := read("timerslack_ns")
	if want := max(ours, int(timerslack.Ours)); !errors.Is(err, fs.ErrPermission) && (err != nil || slack != strconv.Itoa(want)) {
		t.Errorf("the slack is %s, %v, want %d ns", slack, err, want)
	}
}
