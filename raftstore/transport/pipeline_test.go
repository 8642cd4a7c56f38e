package transport

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// Whoever sends is not stopped because nobody looks at the answers any more.
func TestPipelineWhoseAnswersNobodyLooksAt(t *testing.T) {
	m := newFleet(t, "a", "b").rafts
	answer(t, m["b"], nil)
	g := Guard(m["a"])
	defer g.Close() //nolint:errcheck // the fleet closes it, too
	p, err := g.AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		for i := range maxAnswers / 2 {
			req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: uint64(i)}
			if _, err := p.AppendEntries(req, &raft.AppendEntriesResponse{}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the sender stands still")
	}
	if f := <-p.Consumer(); f.Request().Term != 0 {
		t.Errorf("the first answer is of term %d", f.Request().Term)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
