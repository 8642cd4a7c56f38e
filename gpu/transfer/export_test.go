package transfer

import "github.com/yardmaster/yardmaster/core/engine"

// Meet is Export without waiting, for tests in one goroutine.
func (n *Node) Meet(id uint64, peer engine.Peer, prompt []int32, ready func(*Export, error)) {
	n.meet(id, &leg{peer: peer, length: len(prompt), digest: DigestOf(prompt), ready: ready})
}

// Remembered is how many transfers that are over are remembered.
func (n *Node) Remembered() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.gone)
}

// FrameDigest is what a frame adds to Finish.Digest.
func FrameDigest(f *Frame) uint64 { return f.digest() }
