package quietnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// pair is both ends of a connection.
func pair(t *testing.T) (dialled, accepted net.Conn) {
	t.Helper()
	plain, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := Listen(plain)
	t.Cleanup(func() { _ = ln.Close() })
	if dialled, err = Dial(t.Context(), "tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialled.Close() })
	if accepted, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return dialled, accepted
}

// TestBothWaysAtOnce: far more than the system buffers goes each way at the same
// time, in pieces of all sizes, and arrives whole.
func TestBothWaysAtOnce(t *testing.T) {
	a, b := pair(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	var wg sync.WaitGroup
	for _, end := range []struct{ to, from net.Conn }{{a, b}, {b, a}} {
		wg.Go(func() {
			for left, n := want, 1; len(left) > 0; n = n*3 + 1 {
				wrote, err := end.to.Write(left[:min(n, len(left))])
				if err != nil {
					t.Error(err)
					return
				}
				left = left[wrote:]
			}
			_ = end.to.(interface{ CloseWrite() error }).CloseWrite() //nolint:forcetypeassert // TCP
		})
		wg.Go(func() {
			if got, err := io.ReadAll(end.from); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
			}
		})
	}
	wg.Wait()
}

// TestEnds: a read and a write end as those of any connection do.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(mine, peer net.Conn)
		want error
	}{
		"deadline":    {func(mine, _ net.Conn) { _ = mine.SetDeadline(time.Now().Add(20 * time.Millisecond)) }, os.ErrDeadlineExceeded},
		"closed here": {func(mine, _ net.Conn) { _ = mine.Close() }, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			mine, peer := pair(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := mine.Read(make([]byte, 1))
				if !errors.Is(err, tt.want) {
					t.Errorf("Read: %v, want %v", err, tt.want)
				}
				told(t, mine, "read", err)
			})
			wg.Go(func() {
				for wrote := 0; ; {
					n, err := mine.Write(make([]byte, 1<<20)) // nobody reads them
					if wrote += n; err == nil {
						continue
					}
					if !errors.Is(err, tt.want) || n == 1<<20 {
						t.Errorf("Write: %d, %v, want %v", wrote, err, tt.want)
					}
					told(t, mine, "write", err)
					return
				}
			})
			time.Sleep(20 * time.Millisecond) // both wait
			tt.end(mine, peer)
			wg.Wait()
		})
	}
}

// told: an error says what failed, and on which connection.
func told(t *testing.T, c net.Conn, what string, err error) {
	t.Helper()
	op, ok := err.(*net.OpError) //nolint:errorlint // the outermost
	if !ok || op.Op != what || op.Net != "tcp" || op.Source.String() != c.LocalAddr().String() || op.Addr.String() != c.RemoteAddr().String() {
		t.Errorf("%s: %v", what, err)
	}
}

func TestThePeerIsGone(t *testing.T) {
	mine, peer := pair(t)
	if n, err := mine.Write(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	_ = peer.Close()
	if n, err := mine.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // io.EOF itself, as io.ReadAll wants it
		t.Errorf("Read: %d, %v", n, err)
	}
	for range 100 { // the first meets a peer that does not know yet
		if _, err := mine.Write([]byte{1}); err != nil {
			if _, ok := errors.AsType[*os.SyscallError](err); !ok {
				t.Errorf("Write: %v", err)
			}
			told(t, mine, "write", err)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("writes to nobody")
}
