package transport

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline keeps the library's pipelines from deadlock. The library has one
// goroutine that sends requests, one that takes answers off the wire and one
// that looks at them. The last one ends at the first answer that is not a plain
// success. If the sender is about to hand on a request at that moment, and
// another answer has come, then the sender waits for the taker, which waits for
// the looker, which is gone: this follower gets nothing more from this leader
// but heartbeats, so that nobody is elected in its place, and the leader cannot
// shut down.
//
// Here the taker gets rid of its answers whether or not anybody looks, and so
// the sender goes on and finds out.
type pipeline struct {
	raft.AppendPipeline
	hold    func([]*raft.Log) error // returns when the answer to these may be heard
	answers chan raft.AppendFuture
	closed  chan struct{}
	close   sync.Once
	ended   chan struct{} // when relay has
}

// maxAnswers bounds the answers that nobody has looked at: more than can come
// before the sender finds out that nobody does.
const maxAnswers = 64

func newPipeline(inner raft.AppendPipeline, hold func([]*raft.Log) error) *pipeline {
	p := &pipeline{AppendPipeline: inner, hold: hold, answers: make(chan raft.AppendFuture, maxAnswers), closed: make(chan struct{}), ended: make(chan struct{})}
	go p.relay()
	return p
}

// relay ends with the pipeline, which the library closes.
func (p *pipeline) relay() {
	defer close(p.ended)
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			if p.hold(f.Request().Entries) != nil {
				continue // the group is about to end
			}
			select {
			case p.answers <- f:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

// Consumer gives the answers.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close ends the pipeline and waits for its goroutine.
func (p *pipeline) Close() error {
	p.close.Do(func() { close(p.closed) })
	<-p.ended
	return p.AppendPipeline.Close()
}
