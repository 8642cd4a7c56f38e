package planner

import (
	"github.com/yardmaster/yardmaster/core/quota"
)

// Quota returns a tenant's quota, and whether it has one. It is immutable.
func (m *Machine) Quota(tenant string) (*quota.Tenant, bool) { return m.quotas.Load().Tenant(tenant) }

// Quotas is all tenants' quotas as of one index.
func (m *Machine) Quotas() quota.Ledger { return *m.quotas.Load() }

// quotaCodes is what an outcome of the ledger is to the proposer.
var quotaCodes = [...]Code{
	quota.Done: OK, quota.Unknown: UnknownTenant, quota.Stale: StaleWindow, quota.Full: Full, quota.Refused: Refused,
}

func (m *Machine) setQuota(c SetQuota) Result {
	if !soundName(c.Tenant) {
		return Result{Code: Refused}
	}
	next, out := m.quotas.Load().Set(c.Tenant, c.Limit)
	return m.account(next, Result{Code: quotaCodes[out]})
}

func (m *Machine) dropQuota(c DropQuota) Result {
	next, out := m.quotas.Load().Drop(c.Tenant)
	return m.account(next, Result{Code: quotaCodes[out]})
}

func (m *Machine) grantQuota(c GrantQuota) Result {
	if !soundName(c.Tenant) || !soundName(c.Holder) {
		return Result{Code: Refused}
	}
	next, granted, out := m.quotas.Load().Grant(c.Tenant, c.Holder, c.Window, c.Tokens)
	return m.account(next, Result{Code: quotaCodes[out], Granted: granted})
}

func (m *Machine) returnQuota(c ReturnQuota) Result {
	next, returned, out := m.quotas.Load().Return(c.Tenant, c.Holder, c.Window, c.Tokens)
	return m.account(next, Result{Code: quotaCodes[out], Granted: returned})
}

func (m *Machine) endHolder(c EndHolder) Result {
	next, returned := m.quotas.Load().End(c.Holder)
	return m.account(next, Result{Granted: returned})
}

// account publishes the ledger if it is another.
func (m *Machine) account(next quota.Ledger, res Result) Result {
	if !next.Same(*m.quotas.Load()) {
		m.quotas.Store(&next)
		res.Changed = true
	}
	return res
}
