package transfer

import "github.com/yardmaster/yardmaster/core/engine"

// Link is a session with one incarnation of a peer. A transport makes it. All
// methods are safe for concurrent use and return at once.
//
// A link that is lost stays lost: its transport says so once, by [Node.Down],
// and from then on Send and Move fail.
type Link interface {
	// Peer is who is at the other end, as it said itself.
	Peer() engine.Peer
	// Send queues a control message. Messages arrive in order, if they arrive.
	Send(m Message) error
	// Move queues pages for the peer. Frames may overtake one another and may
	// overtake, or be overtaken by, control messages.
	Move(m *Move) error
	// Expect says that about n bytes will move on this link, so that it may
	// prepare (more streams, registered memory).
	Expect(n int64)
	// Close ends the link: the peer has fallen silent on it.
	Close(cause error)
}

// Dialer makes links to source peers. Link returns at once; the link may still
// be connecting, and a failure to connect is a lost link. It fails only when a
// bound is reached.
type Dialer interface {
	Link(peer engine.Peer) (Link, error)
}
