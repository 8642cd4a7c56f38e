package cases

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "yardmaster-cases-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	binaryPath = filepath.Join(dir, "yardmaster")
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

var binaryPath string

// build builds the command once, for the tests that need a process.
var build = sync.OnceValue(func() error {
	args := []string{"build", "-o", binaryPath}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(context.Background(), "go", append(args, "github.com/yardmaster/yardmaster/cmd/yardmaster")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
})

// binary is the built command.
func binary(t *testing.T) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return binaryPath
}
