package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// kills is how often something is killed: 200 times, or 2,000 in the long form
// (make soak).
func kills() int {
	if os.Getenv("YARDMASTER_SOAK") != "" {
		return 2000
	}
	return 200
}

// TestKill kills the prefill worker, the decode worker or the connections
// between them at random instants while clients ask. Every request must end
// with the right text or with an error that the API typed, what arrived of a
// broken answer must be the beginning of the right one, and in the end nothing
// may be left: no request in flight, no KV block held.
func TestKill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("YARDMASTER_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("YARDMASTER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	lot := newQuestions(t, rand.New(rand.NewPCG(seed, 1)), 48)
	transfer := freeAddr(t)
	between := startProxy(t, transfer)
	s := startStack(t,
		assemble.DevWorker{ID: "prefill-0", Role: "prefill", Args: []string{"--transfer", transfer, "--transfer-advertise", between.addr()}},
		assemble.DevWorker{ID: "decode-0", Role: "decode"})
	c := client(t)

	var seen tally
	var over atomic.Bool
	var askers sync.WaitGroup
	for i := range 4 {
		own := rand.New(rand.NewPCG(seed, uint64(2+i)))
		askers.Go(func() {
			for !over.Load() { // a question that has begun ends
				lot.ask(t.Context(), t, s, c, own, &seen)
			}
		})
	}
	k := &killer{stack: s, between: between, random: random}
	for i := range kills() {
		// The last ones spare the processes, so that their gauges have a history.
		k.strike(t, i >= kills()*3/4)
		if t.Failed() {
			break
		}
	}
	over.Store(true)
	askers.Wait()
	seen.log(t)
	t.Logf("killed: %v", k.done)
	if seen.count("whole") == 0 || seen.count("moved") == 0 || seen.count("recomputed") == 0 {
		t.Error("the test did not see whole answers, moved KV and recomputed prompts; it proved nothing")
	}
	s.idle(t, c)
	after := complete(t.Context(), c, s.Gateway.URL(), s.Model(), lot.prompts[0], answerTokens)
	if !after.whole || after.text != lot.answers[0] {
		t.Errorf("after it all: %+v", after)
	}
}

// killer strikes at random.
type killer struct {
	stack   *stack
	between *proxy
	random  *rand.Rand
	done    [3]int // prefill, decode, connections
}

// strike kills one thing and, if it was a process, waits until its successor
// is registered.
func (k *killer) strike(t *testing.T, sparing bool) {
	time.Sleep(time.Duration(k.random.IntN(80_000)) * time.Microsecond)
	victim := k.random.IntN(3)
	if sparing {
		victim = 2
	}
	if victim == 2 {
		if k.between.cut(k.random.IntN(2) == 0) > 0 {
			k.done[2]++
		}
		return
	}
	k.done[victim]++
	child := k.stack.Children()[victim]
	before, _ := k.stack.Worker(fleet.WorkerID(child.Name()))
	child.Signal(syscall.SIGKILL)
	eventually(t, child.Name()+" is registered again", func() bool {
		now, ok := k.stack.Worker(fleet.WorkerID(child.Name()))
		return ok && now.Epoch != before.Epoch
	})
}

const answerTokens = 24

// questions are prompts with the answers of a worker that nobody disturbs.
type questions struct{ prompts, answers []string }

func newQuestions(t *testing.T, random *rand.Rand, n int) *questions {
	t.Helper()
	alone := startStack(t, assemble.DevWorker{ID: "both-0", Role: "both"})
	c := client(t)
	q := &questions{}
	for range n {
		// Far more tokens than the cache holds, so that most must be computed and moved.
		p := prompt(random, 20+random.IntN(1400))
		a := complete(t.Context(), c, alone.aggregating.URL(), alone.Model(), p, answerTokens)
		if !a.whole {
			t.Fatalf("undisturbed: %+v", a)
		}
		q.prompts, q.answers = append(q.prompts, p), append(q.answers, a.text)
	}
	return q
}

// patience is far beyond any deadline that should end a request.
const patience = time.Minute

// ask asks one question, sometimes leaving in the middle, and judges the answer.
func (q *questions) ask(ctx context.Context, t *testing.T, s *stack, c *http.Client, random *rand.Rand, seen *tally) {
	i := random.IntN(len(q.prompts))
	limit, leaves := patience, random.IntN(10) == 0
	if leaves {
		limit = time.Duration(random.IntN(20_000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a := complete(ctx, c, s.Gateway.URL(), s.Model(), q.prompts[i], answerTokens)
	seen.add(&a, leaves && !a.proper())
	switch {
	case !strings.HasPrefix(q.answers[i], a.text):
		t.Errorf("question %d: wrong text %q, right is %q (%+v)", i, a.text, q.answers[i], a)
	case a.whole && a.text != q.answers[i]:
		t.Errorf("question %d: text ends early: %q of %q", i, a.text, q.answers[i])
	case leaves || a.proper():
	default:
		t.Errorf("question %d: neither an answer nor a typed error: %+v", i, a)
	}
	if a.fault != "" {
		time.Sleep(time.Millisecond) // as a client would before it tries again
	}
}

// tally counts what clients saw.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (s *tally) add(a *answer, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	switch {
	case left:
		s.counts["left"]++
	case a.whole:
		s.counts["whole"]++
	default:
		s.counts["fault"]++
		s.counts[fmt.Sprintf("fault %d %s", a.status, a.fault)]++
	}
	if _, kv, ok := strings.Cut(a.path, "kv="); ok {
		kv, _, _ = strings.Cut(kv, ";")
		s.counts[strings.TrimSpace(kv)]++
	}
}

func (s *tally) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[name]
}

func (s *tally) log(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		t.Logf("%6d %s", s.counts[name], name)
	}
}
