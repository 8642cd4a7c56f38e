package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/timerslack"
)

// TestAPlannerMayBeWokenLate: the process that was started has the slack, and its
// own name.
func TestAPlannerMayBeWokenLate(t *testing.T) {
	c := exec.CommandContext(t.Context(), binary, "planner", "--data-dir", filepath.Join(t.TempDir(), "state"), "--gateway=false",
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--gateway-admin", "127.0.0.1:0")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	read := func(file string) string {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), file))
		if err != nil {
			t.Skip("the system does not tell: ", err)
		}
		return strings.TrimSpace(string(b))
	}
	eventually(t, "the slack is raised", func() bool {
		return read("timerslack_ns") == strconv.FormatInt(timerslack.Ours.Nanoseconds(), 10)
	})
	eventually(t, "the process has its name back", func() bool { return strings.HasPrefix(filepath.Base(binary), read("comm")) })
}
