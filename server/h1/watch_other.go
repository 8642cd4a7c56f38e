//go:build !linux

package h1

import "net"

// watcher has no counterpart here: net/http serves every connection.
type watcher struct{}

func newWatcher() *watcher { return nil }

func (*watcher) add(*conn, *net.TCPConn) bool { return false }
func (*watcher) drop(*conn)                   {}
func (*watcher) close()                       {}
