//go:build !linux

package h1

import "net"

// socket is a plain connection here.
type socket struct{ *net.TCPConn }

func newSocket(c *net.TCPConn) *socket { return &socket{c} }
