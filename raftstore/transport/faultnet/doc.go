// Package faultnet is a network that misbehaves on command, for tests and for
// the bench. It stands between named nodes as TCP proxies on the loopback.
//
// A node is named and its real address is told with [Net.Add]. Other nodes
// reach it through [Net.Dialer], which a test puts where a node's dialer goes,
// or, where there are processes, through the address that [Net.Front] gives.
// Between each two nodes there are two directions, and each has a [Fault]:
//
//	Cut        connections that From dialled are reset, new ones refused
//	Blackhole  bytes from From to To stay away until the fault ends, and so
//	           does the news that a connection ended; no connection can be made,
//	           whoever dials, as it takes packets both ways
//	Delay      bytes come later, by Delay and up to Jitter
//	Rate       bytes trickle
//
// Faults act on connections that are open, at once. Bytes are never lost within
// a connection, reordered or changed: TCP would not let them be.
//
//	n := faultnet.New(seed)
//	defer n.Close()
//	n.Add("a", addrOfA)
//	n.Add("b", addrOfB)
//	portOfA.Dialer = n.Dialer("a")
//	n.OneWay("a", "b")                                        // b hears a no more
//	n.Set("b", "a", faultnet.Fault{Delay: 50*time.Millisecond})
//	n.Heal()
//
// Chance (jitter, [Draw]) comes from the seed alone, so that a failed run can
// be told again; what goroutines do in between cannot.
package faultnet
