package assemble

import (
	"context"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// quotaOperator is a store's quotas as the admin API sees them.
type quotaOperator struct{ store func() *raftstore.Store }

// Quotas implements admin.Quotas.
func (o quotaOperator) Quotas() []admin.Quota {
	ledger := o.store().State().Quotas()
	var out []admin.Quota
	for _, row := range ledger.Tenants() {
		out = append(out, admin.Quota{Tenant: row.Key, TokensPerMinute: int64(row.Value.Limit), Granted: int64(row.Value.Granted)})
	}
	return out
}

// Set implements admin.Quotas.
func (o quotaOperator) Set(ctx context.Context, tenant string, tokensPerMinute int64) error {
	return o.propose(ctx, planner.SetQuota{Tenant: tenant, Limit: unit.Tokens(tokensPerMinute)})
}

// Drop implements admin.Quotas.
func (o quotaOperator) Drop(ctx context.Context, tenant string) error {
	return o.propose(ctx, planner.DropQuota{Tenant: tenant})
}

func (o quotaOperator) propose(ctx context.Context, cmd planner.Command) error {
	return policyOperator{store: o.store}.propose(ctx, cmd)
}
