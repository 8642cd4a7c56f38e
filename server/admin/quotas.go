package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/quota"
)

// Quotas is how many tokens tenants may use, as operators see and change it. Errors
// are those of [Cluster].
type Quotas interface {
	// Quotas lists them by tenant.
	Quotas() []Quota
	Set(ctx context.Context, tenant string, tokensPerMinute int64) error
	// Drop ends a quota; the tenant is not limited any more. One that does not exist is
	// no fault.
	Drop(ctx context.Context, tenant string) error
}

// Quota is one tenant's.
type Quota struct {
	Tenant          string `json:"tenant"`
	TokensPerMinute int64  `json:"tokens_per_minute"`
	// Granted is what gateways have taken of it in the newest minute that anybody asked
	// for.
	Granted int64 `json:"granted"`
}

// QuotaList is all quotas.
type QuotaList struct {
	Quotas []Quota `json:"quotas"`
	// Note is what to know of the change that was made, for people.
	Note string `json:"note,omitempty"`
}

// quotasAPI serves /admin/quotas.
type quotasAPI struct{ quotas Quotas } // nil where there are none

func (a *quotasAPI) mount(r chi.Router) {
	r.Route("/admin/quotas", func(r chi.Router) {
		r.Use(present(a.quotas != nil, "no_quotas", "this process keeps no quotas: ask a planner, or a gateway that was started with --join"))
		r.Get("/", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.list()) })
		r.Put("/{tenant}", a.set)
		r.Delete("/{tenant}", a.drop)
	})
}

func (a *quotasAPI) list() QuotaList {
	return QuotaList{Quotas: append([]Quota{}, a.quotas.Quotas()...)}
}

func (a *quotasAPI) set(w http.ResponseWriter, r *http.Request) {
	var want struct {
		TokensPerMinute *int64 `json:"tokens_per_minute"`
	}
	tenant, ok := tenantOf(w, r)
	if !ok || !read(w, r, &want) {
		return
	}
	switch {
	case want.TokensPerMinute == nil:
		fail(w, http.StatusBadRequest, "invalid", "tokens_per_minute is missing; 0 refuses everything")
		return
	case !quota.SoundTenant(tenant):
		fail(w, http.StatusBadRequest, "invalid", "the tenant's name has control characters, or is not UTF-8")
		return
	}
	change(w, r, func(ctx context.Context) (QuotaList, error) {
		err := a.quotas.Set(ctx, tenant, *want.TokensPerMinute)
		out := a.list()
		if *want.TokensPerMinute == 0 {
			out.Note = fmt.Sprintf("%q may use 0 tokens a minute: everything it asks is refused until its quota is set anew or dropped", tenant)
		}
		return out, err
	})
}

func (a *quotasAPI) drop(w http.ResponseWriter, r *http.Request) {
	tenant, ok := tenantOf(w, r)
	if !ok {
		return
	}
	change(w, r, func(ctx context.Context) (QuotaList, error) {
		had := slices.ContainsFunc(a.quotas.Quotas(), func(q Quota) bool { return q.Tenant == tenant })
		err := a.quotas.Drop(ctx, tenant)
		out := a.list()
		if !had {
			out.Note = fmt.Sprintf("%q had no quota", tenant)
		}
		return out, err
	})
}

func tenantOf(w http.ResponseWriter, r *http.Request) (string, bool) {
	tenant, err := pathParam(r, "tenant")
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid", "the tenant's name is not understood")
		return "", false
	}
	return tenant, true
}
