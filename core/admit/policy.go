package admit

import (
	"time"

	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Class is how urgent a request is.
type Class uint8

// The classes, the least urgent first. A request that says nothing is Standard.
const (
	Background Class = iota // may always be refused
	Batch                   // may be refused while the fleet is saturated
	Standard
	Critical
)

// String is the class's name in headers and metrics.
func (c Class) String() string {
	return [...]string{"background", "batch", "standard", "critical"}[min(c, Critical)]
}

// ParseClass reads a class's name.
func ParseClass(s string) (Class, bool) {
	for c := Background; c <= Critical; c++ {
		if c.String() == s {
			return c, true
		}
	}
	return Standard, false
}

// Ask is what is known of a request when it wants in. Numbers of type float64 are
// NaN where they are unknown.
type Ask struct {
	Now           time.Time
	Seed          uint64 // of this decision's random numbers
	Model, Tenant uint64 // hashes
	Prompt        unit.Tokens
	Output        unit.Tokens // expected, negative if unknown
	Class         Class

	Queued        int // requests in this gateway's queue for the model
	TenantQueued  int // those of the tenant
	TenantRunning int // the tenant's requests that this gateway serves
	Workers       int // that could serve the request
	Waiting       int // requests that wait at those

	TenantTokens  float64 // tokens left of the tenant's quota here
	TenantService float64 // the tenant's weighted service, in tokens
	LeastService  float64 // the least of any tenant that waits or is served
	KVUsage       float64 // KV blocks held over those there are

	First, WantedFirst     float64 // time to first token, predicted and wanted, ms
	Between, WantedBetween float64 // time between tokens, predicted and wanted, ms
	Deadline               float64 // until the client gives up, ms
	Waited                 float64 // in the queue so far, ms
}

// Action is what becomes of a request.
type Action uint8

// The actions.
const (
	Serve   Action = iota // at once, if a worker takes it
	Queue                 // wait for its turn behind those that wait
	Reject                // refuse it
	Degrade               // serve it with a shorter output
)

// Verdict is what a policy says of a request.
type Verdict struct {
	Action   Action
	Priority uint8 // in the queue: the greater, the sooner
	// Unavailable makes a refusal 503, no capacity, instead of 429, contention.
	Unavailable bool
	RetryAfter  time.Duration // of a refusal
	Reason      string        // of a refusal, a word
	// By whom, where the policy that was asked has left it to another one: its name,
	// with its version if it has one, and under which entry of the log it is bound.
	Policy, Digest string
	Index          uint64
	Canary         bool
}

// priority is a class's place in the queue.
func priority(c Class) uint8 { return uint8(min(c, Critical)) * 64 }

// Policy decides whether requests are served. It is safe for concurrent use.
type Policy interface {
	// Name is the policy's name in configuration and explanations.
	Name() string
	Admit(*Ask) Verdict
}

// Idler is a [Policy] that may have nothing to decide. Then it need not be asked, and
// requests are served in the order of their classes.
type Idler interface{ Idle(model uint64) bool }

// Open admits everything; the gate, the queue and the workers' own limits are all
// that bounds it. The default policy.
type Open struct{}

// Name is "open".
func (Open) Name() string { return "open" }

// Idle implements [Idler].
func (Open) Idle(uint64) bool { return true }

// Admit serves, in the order of classes.
func (Open) Admit(a *Ask) Verdict { return Verdict{Priority: priority(a.Class)} }

// Policies are new native policies with their defaults, the default one first.
func Policies() []Policy {
	return []Policy{Open{}, NewTokenBucket(0, 0), VTC{}, EarlyRejection{}, Probabilistic{}}
}

// PolicyNamed reads a native policy: a name, with parameters behind it where others
// than their defaults are wanted, "token-bucket(burst=1e6)". It is a new one.
func PolicyNamed(text string) (Policy, error) {
	return native.Read("admission", text, Policies())
}

// PolicyWith is a new native policy of that name, with parameters by name; those left
// out have their defaults.
func PolicyWith(name string, params map[string]float64) (Policy, error) {
	return native.Named("admission", name, params, Policies())
}
