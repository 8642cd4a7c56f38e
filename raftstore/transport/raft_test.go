package transport

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// members are Raft transports of one group that know one another.
func members(c *cluster, ids ...string) map[string]Inner {
	addrs := map[string]string{}
	ports := map[string]*Port{}
	for _, id := range ids {
		ports[id] = c.port(id)
		addrs[id] = ports[id].addr()
	}
	out := map[string]Inner{}
	for _, id := range ids {
		out[id] = ports[id].Raft(ProtoCore, func(id string) (string, bool) { a, ok := addrs[id]; return a, ok }, addrs[id])
		c.t.Cleanup(func() { _ = out[id].Close() })
	}
	return out
}

// answer serves requests with their counterparts until the test ends.
func answer(t *testing.T, n Inner, body func(io.Reader)) {
	t.Helper()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case rpc := <-n.Consumer():
				switch req := rpc.Command.(type) {
				case *raft.AppendEntriesRequest:
					rpc.Respond(&raft.AppendEntriesResponse{Term: req.Term, Success: true, LastLog: uint64(len(req.Entries))}, nil)
				case *raft.RequestVoteRequest:
					rpc.Respond(&raft.RequestVoteResponse{Term: req.Term, Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					rpc.Respond(&raft.RequestPreVoteResponse{Term: req.Term, Granted: true}, nil)
				case *raft.TimeoutNowRequest:
					rpc.Respond(&raft.TimeoutNowResponse{}, nil)
				case *raft.InstallSnapshotRequest:
					body(rpc.Reader)
					rpc.Respond(&raft.InstallSnapshotResponse{Term: req.Term, Success: true}, nil)
				}
			case <-stop:
				return
			}
		}
	}()
}

func header(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(id), Addr: []byte("somewhere")}
}

func TestRaftCarriesEveryRequest(t *testing.T) {
	m := members(newCluster(t), "a", "b")
	var got bytes.Buffer
	answer(t, m["b"], func(r io.Reader) { _, _ = io.Copy(&got, r) })

	var entered raft.AppendEntriesResponse
	entries := []*raft.Log{{Index: 1, Data: []byte("x"), AppendedAt: time.Now()}}
	if err := m["a"].AppendEntries("b", "", &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 7, Entries: entries}, &entered); err != nil || entered.Term != 7 || entered.LastLog != 1 {
		t.Errorf("AppendEntries: %+v, %v", entered, err)
	}
	var vote raft.RequestVoteResponse
	if err := m["a"].RequestVote("b", "", &raft.RequestVoteRequest{RPCHeader: header("a"), Term: 8}, &vote); err != nil || !vote.Granted {
		t.Errorf("RequestVote: %+v, %v", vote, err)
	}
	var pre raft.RequestPreVoteResponse
	if err := m["a"].RequestPreVote("b", "", &raft.RequestPreVoteRequest{RPCHeader: header("a"), Term: 8}, &pre); err != nil || !pre.Granted {
		t.Errorf("RequestPreVote: %+v, %v", pre, err)
	}
	if err := m["a"].TimeoutNow("b", "", &raft.TimeoutNowRequest{RPCHeader: header("a")}, &raft.TimeoutNowResponse{}); err != nil {
		t.Errorf("TimeoutNow: %v", err)
	}
	var install raft.InstallSnapshotResponse
	data := bytes.Repeat([]byte("snapshot "), 100_000)
	if err := m["a"].InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("a"), Term: 9, Size: int64(len(data))}, &install, bytes.NewReader(data)); err != nil || !install.Success {
		t.Errorf("InstallSnapshot: %+v, %v", install, err)
	}
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes of the snapshot arrived, want %d", got.Len(), len(data))
	}
	pipe, err := m["a"].AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	for range 3 {
		f, err := pipe.AppendEntries(&raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 10, Entries: entries}, &raft.AppendEntriesResponse{})
		if err != nil {
			t.Fatal(err)
		}
		if done := <-pipe.Consumer(); done.Error() != nil || f.Response().Term != 10 {
			t.Errorf("pipeline: %+v, %v", f.Response(), done.Error())
		}
	}
}
