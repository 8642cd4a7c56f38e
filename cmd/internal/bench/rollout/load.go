package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/gpu/engine/h1"
)

// load is requests at a steady rate through all gateways, and what their answers say.
type load struct {
	fleet *fleet
	stop  context.CancelFunc
	wait  sync.WaitGroup

	mu       sync.Mutex
	answered int
	failed   int
	wrong    int // decided by another policy than the one bound at the index
	back     int // decided by an older binding than the client's request before
	lags     []time.Duration
	errs     []error // the first few
	decided  []decision
	began    time.Time
	took     time.Duration
}

// decision is what an answer says of its own, and when its request began.
type decision struct {
	policy string
	index  uint64
	count  int
}

const maxErrors = 5

// startLoad begins; end ends it.
func (b *bench) startLoad(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{fleet: b.fleet, stop: cancel, began: time.Now()}
	all := b.Gateways * b.Clients
	every := time.Second * time.Duration(all) / time.Duration(b.Rate)
	for g, addr := range b.fleet.APIs {
		client := h1.New(addr, h1.Config{MaxIdle: b.Clients, Idle: 10 * time.Second, Connect: 10 * time.Second})
		var clients sync.WaitGroup
		for i := range b.Clients {
			first := every * time.Duration(g*b.Clients+i) / time.Duration(all)
			clients.Go(func() { l.client(ctx, client, addr, fmt.Sprintf("%d-%d", g, i), first, every) })
		}
		l.wait.Go(func() {
			clients.Wait()
			client.Close()
		})
	}
	return l
}

// end waits for the requests that are under way.
func (l *load) end() {
	l.took = time.Since(l.began)
	l.stop()
	l.wait.Wait()
}

// client sends a request every so often; one that is late sends the next at once, but
// does not make up for more than that.
func (l *load) client(ctx context.Context, c *h1.Client, addr, session string, first, every time.Duration) {
	next, newest := l.began.Add(first), uint64(0)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		began := time.Now()
		next = next.Add(every)
		if next.Before(began) {
			next = began
		}
		// A request that was sent is waited for: its end must not look like a failure.
		placement, err := send(context.WithoutCancel(ctx), c, addr, session+"-"+strconv.Itoa(n%64))
		l.note(placement, err, began, &newest)
	}
}

// requestTime bounds a request.
const requestTime = 20 * time.Second

// errStatus means that an answer was not 200.
var errStatus = errors.New("rollout: a request was refused")

var body = []byte(`{"model":"` + model + `","max_tokens":1,"ignore_eos":true,"prompt":"abcdefghijklmnopqrstuvwxyz"}`)

// send makes one request and returns what the answer says of its placement.
func send(ctx context.Context, c *h1.Client, addr, session string) (placement string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	resp, err := c.Post(ctx, &h1.Request{
		Target: "/v1/completions", Host: addr, Body: body,
		Head: []byte("Content-Type: application/json\r\nX-Yardmaster-Explain: 1\r\nX-Session-Id: " + session + "\r\n"),
	})
	if err != nil {
		return "", err
	}
	defer resp.Close() //nolint:errcheck // all was read, or it failed
	said, err := io.ReadAll(io.LimitReader(resp, maxAnswer))
	if err == nil && resp.Status != 200 {
		err = fmt.Errorf("%w: status %d: %.300s", errStatus, resp.Status, bytes.TrimSpace(said))
	}
	return resp.Header("X-Yardmaster-Path"), err
}

// note judges an answer, as far as that can be done at once: newest is the newest index
// that the client has seen.
func (l *load) note(placement string, err error, began time.Time, newest *uint64) {
	policy, index := decidedBy(placement)
	lag := l.fleet.superseded(index, began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && (policy == "" || index == 0 || strings.Contains(placement, "; fallback=")) {
		err = fmt.Errorf("rollout: placed without the policy: %s", placement)
	}
	if err != nil {
		l.failed++
		if len(l.errs) < maxErrors {
			l.errs = append(l.errs, err)
		}
		return
	}
	l.answered++
	if lag > 0 {
		l.lags = append(l.lags, lag)
	}
	if index < *newest {
		l.back++
	}
	*newest = max(*newest, index)
	for i := range l.decided {
		if d := &l.decided[i]; d.index == index && d.policy == policy {
			d.count++
			return
		}
	}
	l.decided = append(l.decided, decision{policy, index, 1})
}

// decidedBy is the policy and index that a placement names.
func decidedBy(placement string) (policy string, index uint64) {
	for part := range strings.SplitSeq(placement, "; ") {
		if v, ok := strings.CutPrefix(part, "policy="); ok {
			policy = v
		}
		if v, ok := strings.CutPrefix(part, "policy-index="); ok {
			index, _ = strconv.ParseUint(v, 10, 64) // 0 is no index, which is judged
		}
	}
	return policy, index
}

// judge holds all decisions to what was bound at their index.
func (l *load) judge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.decided {
		if bound := l.fleet.history[d.index]; bound != d.policy {
			l.wrong += d.count
			if len(l.errs) < maxErrors {
				l.errs = append(l.errs, fmt.Errorf("rollout: %d decisions by %s under index %d, which bound %q", d.count, d.policy, d.index, bound))
			}
		}
	}
}
