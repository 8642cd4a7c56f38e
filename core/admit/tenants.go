package admit

import (
	"container/heap"
	"math"
	"sync"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Tenants keeps what each tenant has here: requests that run and wait, and the
// service it got. Service is the virtual token counter,
//
//	1 · prompt tokens computed + 0.1 · prompt tokens cached + 2 · tokens generated
//
// and a tenant that comes back after having had nothing here goes on from the least
// of those that are active, so that nobody saves up by staying away. Source: VTC
// (OSDI '24); the discount for cached tokens is ours. It is safe for concurrent use.
type Tenants struct {
	mu     sync.Mutex
	known  map[uint64]*Account
	active byService // those that run or wait
}

// Account is one tenant's. Its fields belong to Tenants.
type Account struct {
	all              *Tenants
	tenant           uint64
	running, waiting int
	service          float64
	at               int // in Tenants.active, -1 while it is not there
}

// byService is a heap of accounts, the one with the least service first: whoever asks
// for the least would otherwise look at all.
type byService []*Account

func (h byService) Len() int           { return len(h) }
func (h byService) Less(i, j int) bool { return h[i].service < h[j].service }

func (h byService) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push is for package heap.
func (h *byService) Push(x any) {
	a := x.(*Account)
	a.at = len(*h)
	*h = append(*h, a)
}

// Pop is for package heap.
func (h *byService) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	a.at = -1
	return a
}

// Standing is an account at one moment.
type Standing struct {
	Running, Waiting int
	Service          float64
	Least            float64 // service of the active tenant that had the least; NaN if none is active
}

// The weights of service.
const (
	computedWeight  = 1
	cachedWeight    = .1
	generatedWeight = 2
)

// NewTenants knows no tenant yet.
func NewTenants() *Tenants {
	return &Tenants{known: map[uint64]*Account{}}
}

// Visit counts a request of a tenant as running until [Visit.End].
func (t *Tenants) Visit(tenant uint64) *Visit {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.known[tenant]
	if a == nil {
		t.makeRoom()
		a = &Account{all: t, tenant: tenant, at: -1}
		t.known[tenant] = a
	}
	if a.running+a.waiting == 0 {
		if least := t.least(); least > a.service {
			a.service = least
		}
		heap.Push(&t.active, a)
	}
	a.running++
	return &Visit{account: a}
}

// least is the least service of the active, NaN without any. The lock is held.
func (t *Tenants) least() float64 {
	if len(t.active) == 0 {
		return math.NaN()
	}
	return t.active[0].service
}

// makeRoom forgets an idle tenant, where there are too many: of those it looks at the
// one with the least service. The active are bounded by the gate. The lock is held.
func (t *Tenants) makeRoom() {
	if len(t.known) < maxTenants {
		return
	}
	var out *Account
	seen := 0
	for _, a := range t.known {
		if a.running+a.waiting == 0 && (out == nil || a.service < out.service) {
			out = a
		}
		if seen++; seen >= looked && out != nil {
			break
		}
	}
	if out != nil {
		delete(t.known, out.tenant)
	}
}

// Visit is one request of a tenant. Its methods are called by one goroutine.
type Visit struct {
	account *Account
	waits   bool
	ended   bool
}

// Standing is the tenant's account now, this request included.
func (v *Visit) Standing() Standing {
	t := v.account.all
	t.mu.Lock()
	defer t.mu.Unlock()
	return Standing{Running: v.account.running, Waiting: v.account.waiting, Service: v.account.service, Least: t.least()}
}

// service is the tenant's.
func (v *Visit) service() float64 {
	t := v.account.all
	t.mu.Lock()
	defer t.mu.Unlock()
	return v.account.service
}

// wait counts the request as waiting, or as running again. A nil visit is nobody's.
func (v *Visit) wait(waits bool) {
	if v == nil || v.ended || v.waits == waits {
		return
	}
	v.waits = waits
	t := v.account.all
	t.mu.Lock()
	defer t.mu.Unlock()
	by := 1
	if !waits {
		by = -1
	}
	v.account.waiting += by
	v.account.running -= by
}

// Serve adds to the tenant's service: prompt tokens, of which cached were found, and
// tokens generated.
func (v *Visit) Serve(prompt, cached, generated unit.Tokens) {
	cached = min(max(cached, 0), max(prompt, 0))
	service := computedWeight*float64(max(prompt, 0)-cached) + cachedWeight*float64(cached) + generatedWeight*float64(max(generated, 0))
	t := v.account.all
	t.mu.Lock()
	defer t.mu.Unlock()
	v.account.service += service
	if v.account.at >= 0 {
		heap.Fix(&t.active, v.account.at)
	}
}

// End ends the request. Ending again does nothing.
func (v *Visit) End() {
	if v.ended {
		return
	}
	v.ended = true
	t := v.account.all
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.waits {
		v.account.waiting--
	} else {
		v.account.running--
	}
	if v.account.running+v.account.waiting == 0 {
		heap.Remove(&t.active, v.account.at)
	}
}
