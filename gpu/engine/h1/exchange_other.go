//go:build !linux

package h1

// exchange sends a request and reads what comes first of its response.
type exchange struct {
	s    *socket
	out  []byte // nil when nothing waits
	look bool   // the connection has served before
}

func (e *exchange) bind(s *socket) { e.s = s }

// begin takes a request that the next run sends. Its bytes are used until then.
func (e *exchange) begin(out []byte, reused bool) { e.out, e.look = out, reused }

// waits reports whether a request waits to be sent.
func (e *exchange) waits() bool { return e.out != nil }

// run sends the request and reads. That a server answers without reading all of
// the request is no error.
func (e *exchange) run(p []byte) (int, error) {
	out := e.out
	e.out = nil
	if e.look && !peekSilent(e.s) {
		return 0, errStale
	}
	_, failed := e.s.Write(out)
	n, err := e.s.Read(p)
	if err != nil && failed != nil {
		return n, failed
	}
	return n, err
}
