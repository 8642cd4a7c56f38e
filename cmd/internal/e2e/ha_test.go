package e2e

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// haPorts is how many ports in a row the example uses.
const haPorts = 50

// TestTheExampleOfACluster walks through examples/ha in its short form: it fails by
// itself when a stream breaks or a request is refused.
func TestTheExampleOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute")
	}
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	script, err := filepath.Abs("../../../examples/ha/run.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, shell, script, "--short")
	cmd.Env = append(os.Environ(), "YARDMASTER="+binary, "TMPDIR="+t.TempDir(), "YARDMASTER_HA_PORT="+strconv.Itoa(portsInARow(t, haPorts)))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it then ends what it started
	cmd.WaitDelay = 20 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	t.Logf("%s", said.Bytes())
	if err != nil {
		t.Error(err)
	}
}

// portsInARow is the first of n ports that are free.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	free := func(port int) bool {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		return ln.Close() == nil
	}
	for range 100 {
		// Below the range that the system gives to clients.
		first := 12000 + rand.IntN(18000)
		i := 0
		for i < n && free(first+i) {
			i++
		}
		if i == n {
			return first
		}
	}
	t.Fatal("no ports in a row are free")
	return 0
}
