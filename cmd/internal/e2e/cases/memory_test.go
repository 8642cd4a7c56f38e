package cases

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

const mib = 1 << 20

// Measured of other gateways: fifty bodies of 20 MB at once cost 2.6 to 4.1 GB.
// Right: a global budget bounds them; beyond it clients get 429 and may come
// back; and the memory is given back.
func TestManyLargeBodiesAreBounded(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the race detector's own memory is many times the budget")
	}
	e := one(t, `rules: [{match: {route: /v1/chat*}, do: {delay: 300ms, respond: {headers: {Content-Type: application/json}, text: '{"choices":[]}'}}}]`)
	p := serveProcess(t, []*scripted.Engine{e})
	c := newClient(t)
	fresh := p.memory(t, "VmRSS")
	body := sized(20_000_000)
	refused := 0
	for _, r := range together(50, func(int) reply { return ask(t.Context(), c, p.url+chatPath, body) }) {
		switch r.status {
		case http.StatusOK:
		case http.StatusTooManyRequests:
			refused++
			wantRefusal(t, r, http.StatusTooManyRequests)
			if r.header.Get("Retry-After") == "" {
				t.Error("no retry-after")
			}
		default:
			t.Errorf("status %d, err %v: %s", r.status, r.err, r.body)
		}
	}
	peak := p.memory(t, "VmHWM")
	t.Logf("fresh %d MiB, peak %d MiB, %d refused", fresh/mib, peak/mib, refused)
	if refused == 50 {
		t.Error("none was served")
	}
	if peak > 700*mib {
		t.Errorf("50 bodies of 20 MB took %d MiB", peak/mib)
	}
	if r := ask(t.Context(), c, p.url+chatPath, chat); r.status != http.StatusOK {
		t.Errorf("afterwards: status %d, %s", r.status, r.body)
	}
}

// A body that is announced and does not come takes no memory.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, several(t, 1, ""))
	fresh := p.memory(t, "VmRSS")
	addr := strings.TrimPrefix(p.url, "http://")
	for range 100 {
		conn := dial(t, addr)
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: 60000000\r\n\r\n{", chatPath); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t)
	wantGood(t, ask(t.Context(), c, p.url+chatPath, chat))
	if now := p.memory(t, "VmRSS"); now > fresh+300*mib {
		t.Errorf("100 announced bodies of 60 MB took %d MiB", (now-fresh)/mib)
	}
}

// Measured of other gateways: they buffer without limit for a client that does
// not read, 62 of 64 MB in 4 s. Right: a bounded buffer for each.
func TestStalledReadersTakeABoundedBuffer(t *testing.T) {
	t.Parallel()
	const readers, piece, pieces = 30, 64 << 10, 1 << 10
	e := one(t, fmt.Sprintf(`rules: [{match: {route: /v1/chat*, stream: true}, do: {respond: {headers: {Content-Type: text/event-stream}, parts: [{text: %q, repeat: %d}]}}}]`, bigEvent(piece), pieces))
	p := serveProcess(t, []*scripted.Engine{e})
	c := newClient(t)
	wantGood(t, ask(t.Context(), c, p.url+chatPath, chat))
	fresh := p.memory(t, "VmRSS")
	addr := strings.TrimPrefix(p.url, "http://")
	conns := make([]net.Conn, readers)
	for i := range conns {
		conns[i] = dial(t, addr)
		if _, err := fmt.Fprintf(conns[i], "POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatSSE), chatSSE); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(conn, make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all engines are held back", func() bool {
		before := sentBy(e)
		time.Sleep(300 * time.Millisecond)
		return sentBy(e) == before
	})
	took := p.memory(t, "VmRSS") - fresh
	t.Logf("%d stalled readers: %d MiB sent, %d KiB each in the gateway", readers, sentBy(e)/mib, took/readers>>10)
	if most := readers * mib * map[bool]int{false: 1, true: 4}[raceEnabled]; took > most {
		t.Errorf("%d stalled readers took %d MiB", readers, took/mib)
	}
}

func sentBy(e *scripted.Engine) (n int) {
	for _, r := range asked(e) {
		n += r.Sent
	}
	return n
}

// Case 18. Symptom: the prefix index grows until the process is killed. Right: a
// byte budget, whatever comes: endless new chains, removes, workers that die.
func TestThePrefixIndexStaysWithinItsBudget(t *testing.T) {
	const budget, workers, blocks = 24 * mib, 16, 8
	chains := 300_000
	if raceEnabled {
		chains = 30_000
	}
	before := liveHeap()
	index := prefix.New(prefix.Options{Budget: budget})
	held := make([]prefix.Worker, workers)
	for i := range held {
		held[i] = attach(t, index, uint64(i))
	}
	random := rand.New(rand.NewPCG(18, 18))
	chain := make([]prefix.Hash, blocks)
	most := unit.Bytes(0)
	for i := range chains {
		for j := range chain {
			chain[j] = prefix.Hash(random.Uint64() | 1)
		}
		w := i % workers
		index.Store(held[w], chain)
		switch {
		case i%3 == 0:
			index.Remove(held[w], chain[:random.IntN(blocks)])
		case i%50_000 == 1: // a worker dies, and another comes
			index.Detach(held[w])
			held[w] = attach(t, index, uint64(workers+i))
		case i%1000 == 2:
			most = max(most, index.Stats().Bytes)
			for range 100 {
				index.Sweep(1)
			}
		}
	}
	grown := liveHeap() - before
	t.Logf("%d chains: at most %d KiB by its own gauge, %d KiB live", chains, most>>10, grown>>10)
	if most > budget || grown > budget*11/10 {
		t.Errorf("%d bytes by its own gauge and %d live, for a budget of %d", most, grown, budget)
	}
	if gauge := index.Stats().Bytes; int(gauge) < grown*8/10 {
		t.Errorf("the gauge says %d, and %d are live", gauge, grown)
	}
	runtime.KeepAlive(index)
}

func attach(t *testing.T, index *prefix.Index, identity uint64) prefix.Worker {
	t.Helper()
	for {
		w, err := index.Attach(identity)
		if err == nil {
			return w
		}
		if !index.Sweep(1000) {
			t.Fatal(err)
		}
	}
}

// liveHeap is the live heap in bytes.
func liveHeap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
