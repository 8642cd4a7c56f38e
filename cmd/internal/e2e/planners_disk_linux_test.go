package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/planner"
)

// TestSyncFails lets the kernel fail a planner's syncs: it has to end and say
// why, the others go on, and on a disk that works it comes back.
func TestSyncFails(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace here to make the kernel fail syncs")
	}
	c := startCluster(t, nil)
	stop := c.use(t)
	for _, leads := range []bool{true, false} {
		c.works(t)
		sick := c.leader(t)
		if !leads {
			for sick == c.leader(t) {
				sick = c.Nodes[c.random.IntN(len(c.Nodes))]
			}
		}
		t.Logf("%s, leader %v", sick.ID, leads)
		detach := failSyncs(t, strace, sick.PID(), 2+c.random.IntN(20))
		select {
		case <-sick.Exited():
		case <-time.After(time.Minute):
			t.Fatalf("%s goes on for a minute on a disk that does not sync", sick.ID)
		}
		detach()
		if words := sick.LastWords(); !strings.Contains(words, "input/output error") {
			t.Errorf("%s does not say why it ended: %s", sick.ID, words)
		}
		c.works(t)
		if err := sick.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := sick.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	c.verdict(t)
}

// failSyncs makes every sync of a process fail from the n-th on. detach ends
// that; the process may have ended.
func failSyncs(t *testing.T, strace string, pid, n int) (detach func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-p", strconv.Itoa(pid), "-o", os.DevNull,
		"-e", "trace=fsync,fdatasync", "-e", fmt.Sprintf("inject=fsync,fdatasync:error=EIO:when=%d+", n))
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	detach = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		detach()
		t.Skipf("strace may not attach to a process here: %s", line)
	}
	return detach
}

const (
	smallDisk = 200 << 20
	// belowReserve is less than planners keep in reserve.
	belowReserve = 40 << 20
)

// TestDiskFull fills the disk of the leader: it hands over before it is full. When
// nothing is left at all, the others go on without it, and with room again it
// comes back.
func TestDiskFull(t *testing.T) {
	c := startCluster(t, func(all *planners.Cluster) { mountSmall(t, all.Nodes[0].Dir) })
	small := c.Nodes[0]
	stop := c.use(t)
	c.works(t)
	if err := c.members[0].Transfer(t.Context(), small.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, small.ID+" leads", func() bool { id, _ := c.members[0].Leader(); return id == small.ID })

	ballast := filepath.Join(small.Dir, "ballast")
	fill(t, ballast, free(t, small.Dir)-belowReserve)
	eventually(t, small.ID+" hands over", func() bool {
		id, _ := c.members[0].Leader()
		return id != "" && id != small.ID
	})
	c.works(t)
	if !small.Running() {
		t.Errorf("%s ended with some room left: %s", small.ID, small.LastWords())
	}

	fill(t, ballast+"-2", free(t, small.Dir))
	for i := range 400 { // several segments of the log
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := c.members[1].Propose(ctx, planner.SetRegister{Key: fmt.Sprintf("large-%d", i%8), Value: make([]byte, 60<<10)})
		cancel()
		if err != nil {
			t.Fatalf("while one disk of three is full: %v", err)
		}
	}
	if small.Running() {
		t.Logf("%s runs on a full disk", small.ID)
	} else if words := small.LastWords(); !strings.Contains(words, "disk is full") {
		t.Errorf("%s does not say why it ended: %s", small.ID, words)
	}
	for _, name := range []string{ballast, ballast + "-2"} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if !small.Running() {
		if err := small.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	c.verdict(t)
}

// mountSmall puts a small file system under dir for the length of the test.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", smallDisk)); err != nil {
		t.Skipf("a small disk cannot be mounted here, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// fill writes as much, or as much as there is room for.
func fill(t *testing.T, name string, bytes int64) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // its size is what counts
	chunk := make([]byte, 1<<20)
	for ; bytes > 0; bytes -= int64(len(chunk)) {
		if _, err := f.Write(chunk[:min(bytes, int64(len(chunk)))]); err != nil {
			return
		}
	}
}
