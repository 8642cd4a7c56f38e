package quorum

import (
	"context"
	"crypto/tls"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// etcds are three etcd processes on this machine.
type etcds struct {
	nodes   []*exec.Cmd
	clients []string // host:port
	secure  bool     // clients speak TLS
}

// startEtcd starts three members of program with their files under dir. The
// timers are etcd's own, and where it is to be secure so are the certificates.
func startEtcd(ctx context.Context, program, dir string, secure bool) (*etcds, error) {
	ports, err := planners.FreePorts(6)
	if err != nil {
		return nil, err
	}
	scheme, more := "http", []string(nil)
	if secure {
		scheme, more = "https", []string{"--auto-tls", "--peer-auto-tls"}
	}
	peer := func(i int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[2*i]) }
	client := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]) }
	var members []string
	for i := range voters {
		members = append(members, fmt.Sprintf("e%d=%s", i, peer(i)))
	}
	all := &etcds{secure: secure}
	for i := range voters {
		cmd := exec.CommandContext(ctx, program, append([]string{
			"--name", fmt.Sprintf("e%d", i), "--data-dir", fmt.Sprintf("%s/e%d", dir, i), "--log-level", "error",
			"--listen-peer-urls", peer(i), "--initial-advertise-peer-urls", peer(i),
			"--listen-client-urls", scheme + "://" + client(i), "--advertise-client-urls", scheme + "://" + client(i),
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new",
		}, more...)...)
		if err := cmd.Start(); err != nil {
			all.stop()
			return nil, fmt.Errorf("etcd: %w", err)
		}
		all.nodes, all.clients = append(all.nodes, cmd), append(all.clients, client(i))
	}
	return all, nil
}

func (e *etcds) stop() {
	for _, cmd := range e.nodes {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
}

// commits takes the time of n commits of size bytes, one after the other. The way
// from a follower to the leader is not held against etcd: the first time every
// member is tried, and the one with the best median stays.
func (e *etcds) commits(ctx context.Context, n, size int, first bool) (durations, error) {
	if !first {
		return e.commitsAt(ctx, e.clients[0], n, size)
	}
	var best durations
	for i, addr := range e.clients {
		one, err := e.commitsAt(ctx, addr, n, size)
		if err != nil {
			return nil, err
		}
		if best == nil || one.median() < best.median() {
			best = one
			e.clients[0], e.clients[i] = e.clients[i], e.clients[0]
		}
	}
	return best, nil
}

func (e *etcds) commitsAt(ctx context.Context, addr string, n, size int) (durations, error) {
	how := insecure.NewCredentials()
	if e.secure {
		how = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it made its certificate a moment ago
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(how), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	put := func(ctx context.Context, key string) error {
		var answer []byte
		request := putRequest(key, make([]byte, size))
		return conn.Invoke(ctx, "/etcdserverpb.KV/Put", &request, &answer, grpc.ForceCodec(plainBytes{}), grpc.WaitForReady(true))
	}
	begin := time.Now()
	for put(ctx, "warm") != nil { // until it has a leader
		if ctx.Err() != nil || time.Since(begin) > planners.StartTime {
			return nil, fmt.Errorf("etcd: %w at %s", planners.ErrNotReady, addr)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return timed(ctx, n, func(i int) error { return put(ctx, fmt.Sprintf("key-%d", i%16)) })
}

// putRequest is etcd's message of that name.
func putRequest(key string, value []byte) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, key)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendBytes(b, value)
}

// plainBytes sends and receives messages that are encoded already.
type plainBytes struct{}

func (plainBytes) Name() string { return "proto" }

func (plainBytes) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("quorum: %T is no message", v)
	}
	return *b, nil
}

func (plainBytes) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("quorum: %T is no message", v)
	}
	*b = append((*b)[:0], data...)
	return nil
}
