package gate

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The engine gives what its clients ask for, at the pace that is set.
func TestEngineAndClients(t *testing.T) {
	e, err := startEngine()
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	c := newClients(e.addr)
	defer c.close()
	e.pace.Store(int64(5 * time.Millisecond))
	start, pieces := time.Now(), 0
	if err := c.post(t.Context(), body(1, true, 10), func() { pieces++ }); err != nil || pieces < 2 {
		t.Errorf("%d pieces, %v", pieces, err)
	}
	if d := time.Since(start); d < 45*time.Millisecond {
		t.Errorf("ten events 5 ms apart took %v", d)
	}
	if err := c.post(t.Context(), body(1, false, 1), nil); err != nil {
		t.Error(err)
	}
	e.pace.Store(0)
	e.sent.Store(0)
	if err := c.post(t.Context(), body(2, true, bulkEvents), nil); err != nil || e.sent.Load() < 64<<20 {
		t.Errorf("%d bytes of the long stream, %v", e.sent.Load(), err)
	}
	if err := c.stall(t.Context(), body(3, true, bulkEvents), time.Millisecond); err != nil {
		t.Error(err)
	}
	if b := longBody(1, 48_000, 10); len(b) < 47_000 || len(b) > 49_000 || !bytes.Contains(b[:100], []byte(`"max_tokens":10`)) {
		t.Errorf("%d bytes: %.100s", len(b), b)
	}
}

func TestRefusalsAreTold(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }))
	defer s.Close()
	c := newClients(s.Listener.Addr().String())
	defer c.close()
	err := inParallel(3, func(i int) error {
		if i == 0 {
			return nil
		}
		return c.post(t.Context(), body(i, false, 1), nil)
	})
	if !errors.Is(err, ErrFailed) || !isStatus(err, 429) || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("%v", err)
	}
}

func TestLogIsReadToItsEnd(t *testing.T) {
	ready := make(chan string, 1)
	readLogs(strings.NewReader("noise\ntime=x level=INFO msg=\"gateway ready\" url=http://127.0.0.1:7 engines=1\nmore"), ready)
	if got := <-ready; got != "127.0.0.1:7" {
		t.Errorf("%q", got)
	}
	if _, open := <-ready; open {
		t.Error("a second address")
	}
}

func TestGatewayThatDoesNotStart(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are measured on Linux only")
	}
	program, err := exec.LookPath("false")
	if err != nil {
		t.Skip("no program that fails:", err)
	}
	if _, err := Run(context.WithoutCancel(t.Context()), Options{Program: program}, func(string) {}); !errors.Is(err, ErrNotReady) {
		t.Errorf("%v", err)
	}
}

func TestProcessAccount(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are measured on Linux only")
	}
	p := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	if rss, err := p.resident(); err != nil || rss < 1<<20 {
		t.Errorf("%d bytes resident, %v", rss, err)
	}
	for start := time.Now(); ; {
		if d, err := p.cpu(); err != nil || d > 0 {
			if err != nil || d > time.Minute {
				t.Errorf("%v, %v", d, err)
			}
			return
		}
		if time.Since(start) > 10*time.Second {
			t.Fatal("no processor time after ten seconds of work")
		}
	}
}
