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
			req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: uint64(i), Entries: []*raft.Log{{Index: uint64(i + 1)}}}
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

// A follower is not told again what it knows, and is told what it does not.
func TestQuietStream(t *testing.T) {
	m := newFleet(t, "a", "b").rafts
	answer(t, m["b"], nil)
	p, err := m["a"].AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // nothing is lost
	for _, commit := range []uint64{7, 7, 7, 8} {
		if _, err := p.AppendEntries(&raft.AppendEntriesRequest{RPCHeader: header("a"), LeaderCommitIndex: commit}, &raft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint64{7, 8} {
		select {
		case f := <-p.Consumer():
			if got := f.Request().LeaderCommitIndex; got != want {
				t.Errorf("answered for entry %d, want %d", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
}

// Answers to entries are held back, and those to heartbeats are not.
func TestHeldAnswers(t *testing.T) {
	m := newFleet(t, "a", "b").rafts
	answer(t, m["b"], nil)
	g := Guard(m["a"])
	defer g.Close() //nolint:errcheck // the fleet closes it, too
	written := make(chan struct{})
	g.Hold(func(index uint64) error {
		if index == 1 {
			<-written
		}
		return nil
	})
	p, err := g.AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // nothing is lost
	req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 1, Entries: []*raft.Log{{Index: 1}}}
	if _, err := p.AppendEntries(req, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	called := make(chan error, 1)
	go func() { called <- g.AppendEntries("b", "", req, &raft.AppendEntriesResponse{}) }()
	beat := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 1}
	if err := g.AppendEntries("b", "", beat, &raft.AppendEntriesResponse{}); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Consumer():
		t.Error("the stream's answer was not held back")
	case err := <-called:
		t.Errorf("the call's answer was not held back: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(written)
	<-p.Consumer()
	if err := <-called; err != nil {
		t.Error(err)
	}
}

// A peer that is paced gets its entries at intervals.
func TestPacedStream(t *testing.T) {
	m := newFleet(t, "a", "b").rafts
	answer(t, m["b"], nil)
	g := Guard(m["a"])
	defer g.Close() //nolint:errcheck // the fleet closes it, too
	const pause = 20 * time.Millisecond
	g.Pace(func(id raft.ServerID) time.Duration {
		if id != "b" {
			t.Errorf("asked for %s", id)
		}
		return pause
	})
	p, err := g.AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // nothing is lost
	begin := time.Now()
	for i := range uint64(3) {
		req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 1, Entries: []*raft.Log{{Index: i + 1}}}
		if _, err := p.AppendEntries(req, &raft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
		<-p.Consumer()
	}
	if d := time.Since(begin); d < 3*pause {
		t.Errorf("three requests left within %v", d)
	}
}
