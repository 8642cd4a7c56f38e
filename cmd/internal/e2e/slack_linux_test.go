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
	read := func(file string) string {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), file))
		if errors.Is(err, fs.ErrPermission) {
			t.Skip("the system does not tell: ", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	if name := read("comm"); name == "" || !strings.HasPrefix(filepath.Base(binary), name) {
		t.Errorf("the process is called %q", name)
	}
	if got, want := read("timerslack_ns"), strconv.FormatInt(timerslack.Ours.Nanoseconds(), 10); got != want {
		t.Errorf("the slack is %s, want %s ns", got, want)
	}
}
