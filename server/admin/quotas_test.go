package admin

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// fakeQuotas keeps quotas that are not negative.
type fakeQuotas []Quota

func (f *fakeQuotas) Quotas() []Quota { return *f }

func (f *fakeQuotas) Set(_ context.Context, tenant string, n int64) error {
	if n < 0 {
		return fmt.Errorf("%w: %d tokens", ErrInvalid, n)
	}
	*f = append(*f, Quota{Tenant: tenant, TokensPerMinute: n})
	return nil
}

func (f *fakeQuotas) Drop(context.Context, string) error { *f = nil; return nil }

func TestQuotas(t *testing.T) {
	f := &fakeQuotas{}
	for _, s := range []struct {
		method, path, body string
		code               int
		has                string
		none               bool
	}{
		{"GET", "/admin/quotas", "", 200, `{"quotas":[]}`, false},
		{"PUT", "/admin/quotas/a%2Fb", `{"tokens_per_minute":500}`, 200, `{"tenant":"a/b","tokens_per_minute":500,"granted":0}`, false},
		{"PUT", "/admin/quotas/a%252eb", `{"tokens_per_minute":7}`, 200, `{"tenant":"a%2eb","tokens_per_minute":7`, false},
		{"PUT", "/admin/quotas/a%252f%2Fb", `{"tokens_per_minute":8}`, 200, `{"tenant":"a%2f/b","tokens_per_minute":8`, false},
		{"PUT", "/admin/quotas/acme", `{"tokens_per_minute":-1}`, 400, "invalid", false},
		{"PUT", "/admin/quotas/acme", `{"tokens":1}`, 400, "invalid", false},
		{"PUT", "/admin/quotas/acme", `{}`, 400, "0 refuses everything", false},
		{"PUT", "/admin/quotas/acme", `null`, 400, "0 refuses everything", false},
		{"PUT", "/admin/quotas/acme", `{"tokens_per_minute":null}`, 400, "0 refuses everything", false},
		{"PUT", "/admin/quotas/a%1b%5b31m", `{"tokens_per_minute":5}`, 400, "control characters", false},
		{"PUT", "/admin/quotas/a%ff", `{"tokens_per_minute":5}`, 400, "UTF-8", false},
		{"PUT", "/admin/quotas/acme", `{"tokens_per_minute":0}`, 200, "everything it asks is refused", false},
		{"DELETE", "/admin/quotas/acme", "", 200, `{"quotas":[]}`, false},
		{"DELETE", "/admin/quotas/nobody", "", 200, `"note":"\"nobody\" had no quota"`, false},
		{"DELETE", "/admin/quotas/a%1b", "", 200, "had no quota", false},
		{"GET", "/admin/quotas", "", 404, "no_quotas", true},
	} {
		parts := Parts{Quotas: f}
		if s.none {
			parts.Quotas = nil
		}
		r := httptest.NewRequestWithContext(t.Context(), s.method, "http://localhost"+s.path, strings.NewReader(s.body))
		r.Header.Set(Intent, "1")
		w := httptest.NewRecorder()
		Handler(parts).ServeHTTP(w, r)
		if w.Code != s.code || !strings.Contains(w.Body.String(), s.has) {
			t.Errorf("%s %s: %d %s, want %d and %s", s.method, s.path, w.Code, w.Body, s.code, s.has)
		}
	}
}
