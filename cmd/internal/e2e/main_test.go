package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the yardmaster that the tests run, built once from this tree.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

// binaryVar is the environment variable that names the binary to a process of a
// test.
const binaryVar = "YARDMASTER_TEST_BINARY"

func buildAndRun(m *testing.M) int {
	if binary = os.Getenv(binaryVar); binary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "yardmaster-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	binary = filepath.Join(dir, "yardmaster")
	args := []string{"build", "-ldflags", "-X main.version=v0.0.0-test -X main.commit=0123456789ab", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.CommandContext(context.Background(), "go", append(args, "github.com/yardmaster/yardmaster/cmd/yardmaster")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
