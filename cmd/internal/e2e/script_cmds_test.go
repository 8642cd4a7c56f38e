package e2e

import (
	"net"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// ports is the script command `ports NAME...`: it puts a free address of this
// machine, host:port, into each of the environment's variables.
func ports(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: ports NAME...")
	}
	for _, name := range args {
		ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a script has none
		ts.Check(err)
		defer ln.Close() //nolint:errcheck // it only had to be free
		ts.Setenv(name, ln.Addr().String())
	}
}

// retried is the script command `eventually SECONDS COMMAND...`: it runs the
// command until it succeeds. Its last output is there for stdout and stderr.
func retried(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually SECONDS COMMAND [ARGS...]")
	}
	seconds, err := strconv.Atoi(args[0])
	ts.Check(err)
	for deadline := time.Now().Add(time.Duration(seconds) * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v: %v after %d s", args[1:], err, seconds)
		}
	}
}
