package prefixlog

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/snapshot"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// node is a member on a disk and loopback TCP.
type node struct {
	*group.Group[[]prefix.Outcome]
	fsm *FSM
}

// quorum starts three of them and waits for a leader.
func quorum(tb testing.TB, options prefix.Options) (nodes []node, lead node) {
	tb.Helper()
	var servers []group.Server
	var nets []*raft.NetworkTransport
	for i := range 3 {
		net, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 3, 10*time.Second, hclog.NewNullLogger())
		must(tb, err)
		tb.Cleanup(net.CloseStreams) // which its Close does not
		nets = append(nets, net)
		servers = append(servers, group.Server{ID: strconv.Itoa(i), Addr: string(net.LocalAddr())})
	}
	for i, net := range nets {
		dir := tb.TempDir()
		log, err := wal.Open(filepath.Join(dir, "wal"), hclog.NewNullLogger())
		must(tb, err)
		snapshots, err := snapshot.Open(dir, 2, hclog.NewNullLogger(), nil)
		must(tb, err)
		n := node{fsm: New(prefix.NewState(options))}
		n.Group, err = group.Open(tb.Context(), group.Config{
			Name: "prefix", NodeID: strconv.Itoa(i), Bootstrap: servers, Store: log, Snapshots: snapshots, Transport: net,
			WriteDeadline: 10 * time.Second, Registry: &measure.Registry{},
		}, n.fsm)
		must(tb, err)
		tb.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			must(tb, n.Close(ctx))
		})
		nodes = append(nodes, n)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, n := range nodes {
			if n.Leading() {
				return nodes, n
			}
		}
	}
	tb.Fatal("no leader")
	return nil, node{}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// feed is a worker whose cache changes.
type feed struct {
	frame prefix.Frame
	sum   uint64
	next  uint64
}

func newFeed(i int) *feed {
	return &feed{frame: prefix.Frame{Kind: prefix.FrameDelta, Worker: worker(i), Epoch: 1}, next: uint64(i) << 40}
}

// tell makes the next frame: n blocks come, and half of those before go.
func (f *feed) tell(n int) *prefix.Frame {
	old := slices.Clone(f.frame.Stores)
	f.frame.Stores, f.frame.Removes = f.frame.Stores[:0], f.frame.Removes[:0]
	for _, h := range old[:len(old)/2] {
		f.frame.Removes = append(f.frame.Removes, h)
		f.sum -= h.Sum()
	}
	for range n - len(f.frame.Removes) {
		f.next += 0x9E3779B97F4A7C15
		h := prefix.Hash(f.next)
		f.frame.Stores = append(f.frame.Stores, h)
		f.sum += h.Sum()
	}
	f.frame.First = f.frame.Last + 1
	f.frame.Last += uint64(len(f.frame.Stores) + len(f.frame.Removes))
	f.frame.Sum = f.sum
	return &f.frame
}

// BenchmarkReplication feeds 1,000 workers' events, 150,000 a second, to three
// nodes on this machine for ten seconds. It tells how long a frame takes until it
// is applied, and the processor time of all that: workers, batcher, three logs
// and three indices.
func BenchmarkReplication(b *testing.B) {
	const workers, perSecond, events = 1000, 10, 15
	nodes, lead := quorum(b, prefix.Options{})
	batcher := NewBatcher(Config{Submit: To(lead.Group)})
	defer batcher.Close()
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		times := make([][]time.Duration, workers)
		first, start := lead.CommitIndex(), cpuTime(b)
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() { times[i] = drive(ctx, b, batcher, i, time.Second/perSecond, events) })
		}
		wg.Wait()
		cancel()
		all := slices.Concat(times...)
		slices.Sort(all)
		b.ReportMetric(float64(len(all)*events)/10, "events/s")
		b.ReportMetric(float64(lead.CommitIndex()-first)/10, "entries/s")
		b.ReportMetric(all[len(all)/2].Seconds()*1e3, "p50-ms")
		b.ReportMetric(all[len(all)*99/100].Seconds()*1e3, "p99-ms")
		b.ReportMetric((cpuTime(b)-start).Seconds()/10, "cores")
	}
	index, err := lead.ReadIndex(b.Context())
	must(b, err)
	for _, n := range nodes {
		must(b, n.WaitApplied(b.Context(), index))
		if n.fsm.Digest() != lead.fsm.Digest() {
			b.Error("nodes differ")
		}
	}
}

// drive is one worker until ctx ends.
func drive(ctx context.Context, b *testing.B, batcher *Batcher, i int, every time.Duration, events int) (times []time.Duration) {
	f := newFeed(i)
	hello := attach(f.frame.Worker)
	if _, err := batcher.Do(ctx, &hello); err != nil {
		b.Error(err)
		return nil
	}
	time.Sleep(rand.N(every))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return times
		case <-tick.C:
		}
		start := time.Now()
		out, err := batcher.Do(context.WithoutCancel(ctx), f.tell(events))
		if err != nil || out != prefix.Applied {
			b.Errorf("%v, %v", out, err)
			return times
		}
		times = append(times, time.Since(start))
	}
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	must(tb, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const millions = 10

// large is an FSM of ten million blocks.
func large(tb testing.TB) (*FSM, []*feed) {
	tb.Helper()
	var feeds []*feed
	f := New(prefix.NewState(prefix.Options{Budget: 2 << 30}))
	for i := range 1000 {
		a := attach(worker(i))
		f.state.Apply(&a)
		w := newFeed(i)
		for range millions {
			w.frame.Stores = w.frame.Stores[:0]
			f.state.Apply(w.tell(1000))
		}
		feeds = append(feeds, w)
	}
	f.applied.Store(1)
	if n := f.state.Stats().Blocks; n < millions*1_000_000*99/100 {
		tb.Fatalf("%d blocks", n)
	}
	return f, feeds
}

// shared is an FSM of ten million pairs, each block being held by ten workers: a
// row of holders for each.
func shared(tb testing.TB) (*FSM, []*feed) {
	tb.Helper()
	f, feeds := New(prefix.NewState(prefix.Options{Budget: 2 << 30})), make([]*feed, 1000)
	for i := range feeds {
		a := attach(worker(i))
		f.state.Apply(&a)
		feeds[i] = newFeed(i)
	}
	for i, w := range feeds {
		w.next = uint64(i/10) << 40 // as the nine others of its ten
		for range millions {
			w.frame.Stores = w.frame.Stores[:0]
			f.state.Apply(w.tell(1000))
		}
	}
	f.applied.Store(1)
	if s := f.state.Stats(); s.Blocks > millions*110_000 || s.Held < millions*990_000 {
		tb.Fatalf("%+v", s)
	}
	return f, feeds
}

// BenchmarkSnapshot captures and writes ten million blocks, or pairs of which ten
// share a block, while frames go on, and tells the longest that one had to wait: for
// the capture, which like the library's is between two frames, or beside the writing.
func BenchmarkSnapshot(b *testing.B) {
	for name, made := range map[string]func(testing.TB) (*FSM, []*feed){"blocks": large, "shared": shared} {
		b.Run(name, func(b *testing.B) { benchSnapshot(b, made) })
	}
}

func benchSnapshot(b *testing.B, made func(testing.TB) (*FSM, []*feed)) {
	f, feeds := made(b)
	due, captures := make(chan struct{}), make(chan *capture, 1)
	var captured, longest time.Duration
	go func() {
		defer close(captures)
		for i := 0; ; i++ {
			frame := feeds[i%len(feeds)].tell(15)
			start := time.Now()
			select {
			case _, more := <-due:
				if !more {
					return
				}
				s := f.Snapshot().(*capture)
				captured = max(captured, time.Since(start))
				captures <- s
			default:
			}
			f.state.Apply(frame)
			longest = max(longest, time.Since(start))
			time.Sleep(100 * time.Microsecond)
		}
	}()
	for b.Loop() {
		due <- struct{}{}
		s := <-captures
		n, err := s.WriteTo(io.Discard)
		must(b, err)
		s.Release()
		b.ReportMetric(float64(n)/1e6, "MB")
	}
	close(due)
	<-captures
	b.ReportMetric(captured.Seconds()*1e3, "capture-ms")
	b.ReportMetric(longest.Seconds()*1e3, "stall-ms")
}

// BenchmarkRestore restores ten million blocks.
func BenchmarkRestore(b *testing.B) {
	full, _ := large(b)
	var saved bytes.Buffer
	s := full.Snapshot().(*capture)
	_, err := s.WriteTo(&saved)
	must(b, err)
	s.Release()
	for b.Loop() {
		f := New(prefix.NewState(prefix.Options{}))
		must(b, f.Restore(bytes.NewReader(saved.Bytes())))
	}
}

// BenchmarkCapture is the part of a snapshot during which nothing is applied.
func BenchmarkCapture(b *testing.B) {
	f, _ := large(b)
	for b.Loop() {
		f.Snapshot().(*capture).Release()
	}
}
