package host

import (
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// Admission decides by a policy in Wasm whether requests are served. It is an
// [admit.Policy] and may be used from several goroutines.
type Admission struct {
	*caller
	fallback admit.Policy
}

// NewAdmission makes an admission policy of a policy of that kind, which stays the
// caller's to close. When the guest cannot answer, the fallback does if there is one;
// without one, the manifest's fail says whether everything is served meanwhile or
// nothing. Errors wrap [ErrRefused].
func NewAdmission(p *Policy, fallback admit.Policy) (*Admission, error) {
	c, err := p.callerOf(abi.Admission)
	if err != nil {
		return nil, err
	}
	a := &Admission{caller: c, fallback: fallback}
	if p.manifest.Fail == "closed" {
		a.fallback = Closed{}
	} else if fallback == nil {
		a.fallback = admit.Open{}
	}
	return a, nil
}

// Admit is the guest's verdict, or the fallback's.
func (a *Admission) Admit(ask *admit.Ask) admit.Verdict {
	v, fault := a.Try(ask)
	if fault != NoFault {
		return a.fallback.Admit(ask)
	}
	return v
}

// Try is Admit without the fallback. Its verdict means nothing unless there is no
// fault.
func (a *Admission) Try(ask *admit.Ask) (admit.Verdict, Fault) {
	v, fault := a.ask(ask)
	a.tally.add(fault)
	return v, fault
}

func (a *Admission) ask(ask *admit.Ask) (admit.Verdict, Fault) {
	in := a.policy.Take()
	if in == nil {
		return admit.Verdict{}, a.policy.none()
	}
	request := admissionOf(ask)
	request.Put(in.Request())
	in.Seed(ask.Seed)
	v, err := in.Admit()
	a.policy.Put(in)
	return verdictOf(v), faultOf(err)
}

// admissionOf is what is known of a request as the guest sees it.
func admissionOf(a *admit.Ask) abi.AdmissionRequest {
	r := abi.AdmissionRequest{
		Seed: a.Seed, Model: a.Model, Tenant: a.Tenant, Prompt: clamp(float64(a.Prompt)), Output: abi.UnknownU32, Class: uint32(a.Class),
		Queued: clamp(float64(a.Queued)), TenantQueued: clamp(float64(a.TenantQueued)), TenantRunning: clamp(float64(a.TenantRunning)),
		Workers: clamp(float64(a.Workers)), Waiting: clamp(float64(a.Waiting)),
		TenantTokens: float32(a.TenantTokens), TenantService: float32(a.TenantService), LeastService: float32(a.LeastService), KVUsage: float32(a.KVUsage),
		FirstMillis: float32(a.First), SLOFirst: float32(a.WantedFirst), DeadlineMillis: float32(a.Deadline), WaitedMillis: float32(a.Waited),
		BetweenMillis: float32(a.Between), SLOBetween: float32(a.WantedBetween),
	}
	if a.Output >= 0 {
		r.Output = clamp(float64(a.Output))
	}
	return r
}

// verdictOf translates a verdict.
func verdictOf(v abi.Verdict) admit.Verdict {
	out := admit.Verdict{Priority: v.Priority, Unavailable: v.Status == 503, RetryAfter: time.Duration(v.RetryAfter) * time.Millisecond}
	switch v.Action {
	case abi.Admit:
		out.Action = admit.Serve
	case abi.Queue:
		out.Action = admit.Queue
	case abi.Degrade:
		out.Action = admit.Degrade
	case abi.Reject:
		out.Action, out.Reason = admit.Reject, "policy"
	}
	return out
}

// Closed refuses everything, as a policy that fails closed does when it has no answer.
type Closed struct{}

// Name is "closed".
func (Closed) Name() string { return "closed" }

// Admit refuses for a second.
func (Closed) Admit(*admit.Ask) admit.Verdict {
	return admit.Verdict{Action: admit.Reject, Unavailable: true, RetryAfter: time.Second, Reason: "policy_failed"}
}
