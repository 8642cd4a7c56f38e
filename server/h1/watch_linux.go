package h1

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher learns from the kernel which clients have left: one epoll instance for
// all connections, itself waited for by Go's poller. A connection costs two
// system calls in its life and a request none.
type watcher struct {
	fd   int
	file *os.File
	done chan struct{}

	mu    sync.Mutex
	next  uint64
	conns map[uint64]*conn
}

// newWatcher is nil when the kernel does not give one.
func newWatcher() *watcher {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	w := &watcher{fd: fd, file: os.NewFile(uintptr(fd), "epoll"), done: make(chan struct{}), conns: map[uint64]*conn{}}
	raw, err := w.file.SyscallConn()
	if err != nil || w.file.SetReadDeadline(noDeadline) != nil { // not pollable: it would block a thread
		_ = w.file.Close()
		return nil
	}
	go func() {
		defer close(w.done)
		_ = raw.Read(w.collect) // ends when the file is closed
	}()
	return w
}

// collect takes what the kernel has to say and asks to be called again.
func (w *watcher) collect(fd uintptr) (done bool) {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(int(fd), events[:], 0)
		if n <= 0 {
			return err != nil && err != unix.EINTR
		}
		for i := range n {
			w.left(uint64(uint32(events[i].Fd)) | uint64(uint32(events[i].Pad))<<32)
		}
	}
}

func (w *watcher) left(id uint64) {
	w.mu.Lock()
	c := w.conns[id]
	w.mu.Unlock()
	if c != nil {
		c.gone()
	}
}

// add begins to watch c. It reports whether that worked.
func (w *watcher) add(c *conn, raw *net.TCPConn) bool {
	w.mu.Lock()
	w.next++
	id := w.next
	c.id = id
	w.conns[id] = c
	w.mu.Unlock()
	sc, err := raw.SyscallConn()
	if err != nil {
		return false
	}
	// The kernel forgets the descriptor when it is closed.
	ok := false
	err = sc.Control(func(fd uintptr) {
		event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
		ok = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &event) == nil
	})
	return err == nil && ok
}

// drop ends the watch, before c's descriptor is closed or given away.
func (w *watcher) drop(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c.id)
}

func (w *watcher) close() {
	_ = w.file.Close()
	<-w.done
}
