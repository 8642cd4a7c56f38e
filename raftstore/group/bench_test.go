package group

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// onDisk starts three members with logs on disk, in real time.
func onDisk(b *testing.B) []*node {
	b.Helper()
	members := make([]*node, 3)
	var servers []Server
	for i := range members {
		id := strconv.Itoa(i)
		_, net := raft.NewInmemTransport(raft.ServerAddress(id))
		log, err := wal.Open(filepath.Join(b.TempDir(), "wal"), hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		members[i] = &node{fsm: &counter{}, store: &sickStore{Store: log}, net: net}
		servers = append(servers, Server{id, id})
	}
	for i, m := range members {
		connect(members, i)
		var err error
		m.Group, err = Open(b.Context(), Config{
			Name: "test", NodeID: servers[i].ID, Bootstrap: servers, Store: m.store, Snapshots: raft.NewInmemSnapshotStore(),
			Transport: m.net, WriteDeadline: 10 * time.Second, Registry: &measure.Registry{},
		}, m.fsm)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_ = m.Close(ctx)
		})
	}
	return members
}

// write proposes at each member in turn until one takes the entry.
func write(b *testing.B, members []*node) *node {
	b.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, m := range members {
			if !m.Leading() {
				continue
			}
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
			_, err := m.Apply(ctx, make([]byte, 100))
			cancel()
			if err == nil {
				return m
			}
		}
	}
	b.Fatal("no member takes a write")
	return nil
}

// BenchmarkFailover cuts the leader off and tells the time to the first write
// that another acknowledges.
func BenchmarkFailover(b *testing.B) {
	members := onDisk(b)
	var times []time.Duration
	for b.Loop() {
		dead := write(b, members)
		start := time.Now()
		isolate(members, slices.Index(members, dead))
		write(b, without(members, dead))
		times = append(times, time.Since(start))
		connect(members, slices.Index(members, dead))
		time.Sleep(time.Second)
	}
	report(b, times)
}

// BenchmarkTransfer hands leadership over and tells the same.
func BenchmarkTransfer(b *testing.B) {
	members := onDisk(b)
	var times []time.Duration
	for b.Loop() {
		old := write(b, members)
		start := time.Now()
		if err := old.Transfer(b.Context(), ""); err != nil {
			b.Fatal(err)
		}
		write(b, without(members, old))
		times = append(times, time.Since(start))
		time.Sleep(200 * time.Millisecond)
	}
	report(b, times)
}

// BenchmarkCommit writes 100 bytes, one entry after the other.
func BenchmarkCommit(b *testing.B) {
	members := onDisk(b)
	lead := write(b, members)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := lead.Apply(b.Context(), make([]byte, 100)); err != nil {
			b.Log(err) // a busy machine elects another
			lead = write(b, members)
			continue
		}
		times = append(times, time.Since(start))
	}
	report(b, times)
}

// BenchmarkReadIndex is a linearizable read without a write.
func BenchmarkReadIndex(b *testing.B) {
	members := onDisk(b)
	lead := write(b, members)
	for b.Loop() {
		index, err := lead.ReadIndex(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := lead.WaitApplied(b.Context(), index); err != nil {
			b.Fatal(err)
		}
	}
}

func report(b *testing.B, times []time.Duration) {
	b.Helper()
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(times[len(times)-1].Seconds()*1e3, "max-ms")
}
