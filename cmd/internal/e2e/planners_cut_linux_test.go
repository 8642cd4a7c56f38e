package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// The machines' addresses are those that are kept for examples, the last byte
// being the number of the planner plus one. The test is a machine, too.
const (
	yardNet    = "192.0.2."
	yardTest   = yardNet + "254"
	yardBridge = "yard"
	// nobody is a link address that no machine has: what is sent there arrives at
	// all of them, and none takes it.
	nobody = "02:00:00:00:00:fe"
)

// insideVar says that the test runs in the network that was made for it.
const insideVar = "YARDMASTER_TEST_INSIDE"

// TestLeaderCutOff has each planner on a machine of its own, as far as the kernel
// can play that: network namespaces on a bridge, in a namespace that holds the
// test as well, so that no other network is touched. The leader is cut off in
// each way that there is; somebody else leads soon, the old one knows that it
// leads no more, and nothing that was acknowledged is lost.
func TestLeaderCutOff(t *testing.T) {
	if os.Getenv(insideVar) == "" {
		runInside(t)
		return
	}
	y := newYard(t, 3)
	all, err := planners.NewAt(binary, t.TempDir(), yardTest, y.places())
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, all)
	stop := c.use(t)
	rounds := 1
	if simulated() {
		rounds = 10
	}
	var took []time.Duration
	for range rounds {
		order := slices.Clone(cuts)
		c.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, cut := range order {
			took = append(took, c.cutOff(t, y, cut))
		}
	}
	stop()
	c.verdict(t)
	slices.Sort(took)
	t.Logf("cut to the first write: p50 %v, at most %v", took[len(took)/2], took[len(took)-1])
}

// cut is a way to cut one machine off from others.
type cut struct {
	name string
	make func(t *testing.T, y *yard, one int, others []int)
	heal func(t *testing.T, y *yard, one int, others []int)
}

var cuts = []cut{
	{"unplugged", func(t *testing.T, y *yard, one int, _ []int) { y.plug(t, one, false) }, func(t *testing.T, y *yard, one int, _ []int) { y.plug(t, one, true) }},
	{
		"parted from the planners", func(t *testing.T, y *yard, one int, others []int) {
			y.lose(t, []int{one}, others, true)
			y.lose(t, others, []int{one}, true)
		}, func(t *testing.T, y *yard, one int, others []int) {
			y.lose(t, []int{one}, others, false)
			y.lose(t, others, []int{one}, false)
		},
	},
	{
		"heard by no planner", func(t *testing.T, y *yard, one int, others []int) { y.lose(t, []int{one}, others, true) },
		func(t *testing.T, y *yard, one int, others []int) { y.lose(t, []int{one}, others, false) },
	},
	{
		"hearing no planner", func(t *testing.T, y *yard, one int, others []int) { y.lose(t, others, []int{one}, true) },
		func(t *testing.T, y *yard, one int, others []int) { y.lose(t, others, []int{one}, false) },
	},
}

// cutOff cuts the leader off for a while. It returns how long nothing could be
// written.
func (c *cluster) cutOff(t *testing.T, y *yard, way cut) (took time.Duration) {
	t.Helper()
	c.works(t)
	old := c.leader(t)
	term := c.coreTerm(t, old.ID)
	one, others := 0, []int(nil)
	for i, n := range c.Nodes {
		if n == old {
			one = i
		} else {
			others = append(others, i)
		}
	}
	begin := time.Now()
	way.make(t, y, one, others)
	// What is under way at the moment may still be acknowledged, and is no news.
	eventually(t, "another planner leads", func() bool {
		for _, i := range others {
			if leads(t, c.Nodes[i]) {
				return true
			}
		}
		return false
	})
	elected := time.Since(begin)
	c.works(t)
	took = time.Since(begin)
	eventually(t, old.ID+" knows that it leads no more", func() bool { return !leads(t, old) })
	t.Logf("%s, leader in term %d, is %s: another leads after %v, writes after %v, it gave up after %v",
		old.ID, term, way.name, elected.Round(time.Millisecond), took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	c.pause(2000)
	way.heal(t, y, one, others)
	eventually(t, old.ID+" is back", func() bool { return c.coreTerm(t, old.ID) > term })
	if err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	return took
}

// leads reports whether the planner says that it leads the group core.
func leads(t *testing.T, n *planners.Node) bool {
	const gauge = `yardmaster_raft_leader\{group="core"\}`
	return gauges(t.Context(), n, gauge)[gauge] == 1
}

// runInside runs the test that calls it in a network of its own.
func runInside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("networks of their own take root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip here to make networks")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=20m")
	cmd.Env = append(os.Environ(), insideVar+"=1", binaryVar+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.WaitDelay = 10 * time.Second
	said, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("networks of their own are not allowed here: %v", err)
	}
	t.Logf("%s", said)
	if err != nil {
		t.Error(err)
	}
	if bytes.Contains(said, []byte("--- SKIP")) {
		t.Skip("said above")
	}
}

// yard is machines on one bridge, in the namespace that the caller is in.
type yard struct{ machines []string } // files of the namespaces

// newYard makes it. The namespaces end with the test.
func newYard(t *testing.T, machines int) *yard {
	t.Helper()
	y := &yard{}
	if out, err := ip(t, "link", "add", yardBridge, "type", "bridge"); err != nil {
		t.Skipf("no bridges here: %s", out)
	}
	must(t, "link", "set", "lo", "up")
	must(t, "addr", "add", yardTest+"/24", "dev", yardBridge)
	must(t, "link", "set", yardBridge, "up")
	for i := range machines {
		pid := hold(t)
		y.machines = append(y.machines, fmt.Sprintf("/proc/%d/ns/net", pid))
		must(t, "link", "add", port(i), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid))
		must(t, "link", "set", port(i), "master", yardBridge, "up")
		y.within(t, i, func() {
			must(t, "link", "set", "lo", "up")
			must(t, "addr", "add", address(i)+"/24", "dev", "eth0")
			must(t, "link", "set", "eth0", "up")
		})
	}
	return y
}

func port(machine int) string    { return fmt.Sprintf("port%d", machine) }
func address(machine int) string { return fmt.Sprintf("%s%d", yardNet, machine+1) }

// hold starts a process that keeps a network namespace, until the test ends or
// this process does.
func hold(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// places are the machines for planners.
func (y *yard) places() (out []planners.Place) {
	for i, file := range y.machines {
		out = append(out, planners.Place{Host: address(i), Enter: func(f func() error) error { return enter(file, f) }})
	}
	return out
}

// within calls f on a machine.
func (y *yard) within(t *testing.T, machine int, f func()) {
	t.Helper()
	if err := enter(y.machines[machine], func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// plug plugs a machine's cable in, or out at the switch.
func (y *yard) plug(t *testing.T, machine int, in bool) {
	t.Helper()
	must(t, "link", "set", port(machine), map[bool]string{true: "up", false: "down"}[in])
}

// lose has what each of the machines sends to each of the others vanish, or
// arrive again.
func (y *yard) lose(t *testing.T, from, to []int, vanish bool) {
	t.Helper()
	for _, f := range from {
		y.within(t, f, func() {
			for _, other := range to {
				if vanish {
					must(t, "neigh", "replace", address(other), "lladdr", nobody, "dev", "eth0", "nud", "permanent")
				} else {
					must(t, "neigh", "del", address(other), "dev", "eth0")
				}
			}
		})
	}
}

// enter calls f with the network namespace of that file. Processes that f starts
// are in it, and so are connections that it makes.
func enter(file string, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close() //nolint:errcheck // read only
	away, err := os.Open(file)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer away.Close() //nolint:errcheck // read only
	defer func() {
		back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if back == nil { // else the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, back)
	}()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return f()
}

// ip runs the program of that name.
func ip(t *testing.T, args ...string) (string, error) {
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func must(t *testing.T, args ...string) {
	t.Helper()
	if out, err := ip(t, args...); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
