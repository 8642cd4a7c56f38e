package assemble

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/errs"
)

func TestTenantsByKey(t *testing.T) {
	hash := sha256.Sum256([]byte("sk-two"))
	file := filepath.Join(t.TempDir(), "keys")
	text := "\ufeffbom sk-zero\n# who and what\nacme sk-one # their first\n\nacme sha256:" + hex.EncodeToString(hash[:]) + "\nother\tsk-three\nthird sk#four\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	whose, err := openTenants(config.Gateway{TenantKeys: file, TenantHeader: "x-tenant"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ header, value, want string }{
		{"Authorization", "Bearer sk-zero", "bom"},
		{"Authorization", "Bearer sk-one", "acme"},
		{"Authorization", "Bearer sk-two", "acme"},
		{"X-Api-Key", "sk-three", "other"},
		{"Authorization", "Bearer sk#four", "third"},
		{"Authorization", "Bearer sk", ""},
		{"Authorization", "Bearer sk-five", ""},
		{"Authorization", "sk-one", ""},
		{"X-Tenant", "acme", ""},
		{"Accept", "*/*", ""},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", http.NoBody)
		r.Header.Set(tt.header, tt.value)
		got, _, err := whose.of(r)
		if got != tt.want || (tt.want == "") != (errs.KindOf(err) == errs.Unauthorized) {
			t.Errorf("%s: %s: %q, %v; want %q", tt.header, tt.value, got, err, tt.want)
		}
	}
}

func TestTenantsByHeader(t *testing.T) {
	whose, err := openTenants(config.Gateway{TenantHeader: "x-tenant"})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", http.NoBody)
	if got, _, err := whose.of(r); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	r.Header.Set("X-Tenant", "acme")
	if got, _, err := whose.of(r); got != "acme" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	r.Header.Set("X-Tenant", strings.Repeat("a", maxTenantName+1))
	if _, _, err := whose.of(r); errs.KindOf(err) != errs.BadRequest {
		t.Errorf("a long name: %v", err)
	}
	for _, name := range []string{"a\tb", "a\u0085b", "\xff", "a\u202eb"} {
		r.Header.Set("X-Tenant", name)
		if _, _, err := whose.of(r); errs.KindOf(err) != errs.BadRequest {
			t.Errorf("%q: %v", name, err)
		}
	}
	if whose, err := openTenants(config.Gateway{}); whose != nil || err != nil || whose.serve() != nil {
		t.Errorf("without tenants: %v, %v", whose, err)
	}
}

func TestBadTenantKeys(t *testing.T) {
	for _, text := range []string{"acme", "acme a b", "acme a critical b", "acme sha256:12", strings.Repeat("a", maxTenantName+1) + " k", "a k\nb k", "a\x1b[2J k", "\xff k", "a k\n\ufeffb k2"} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openTenants(config.Gateway{TenantKeys: file}); !errors.Is(err, ErrTenantKeys) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := openTenants(config.Gateway{TenantKeys: "/nowhere/keys"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// How urgent requests may be is the operator's to say.
func TestHighestClass(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("acme one\nacme two critical\nother three batch # at night\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		c    config.Gateway
		key  string
		want admit.Class
	}{
		{config.Gateway{TenantKeys: file}, "one", admit.Standard},
		{config.Gateway{TenantKeys: file}, "two", admit.Critical},
		{config.Gateway{TenantKeys: file}, "three", admit.Batch},
		{config.Gateway{TenantKeys: file, MaxClass: "critical"}, "one", admit.Critical},
		{config.Gateway{TenantKeys: file, MaxClass: "critical"}, "three", admit.Batch},
		{config.Gateway{TenantHeader: "x-tenant"}, "", admit.Standard},
		{config.Gateway{TenantHeader: "x-tenant", MaxClass: "batch"}, "", admit.Batch},
		{config.Gateway{MaxClass: "critical"}, "", admit.Critical},
	} {
		whose, err := openTenants(tt.c)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", http.NoBody)
		r.Header.Set("X-Api-Key", tt.key)
		if _, got, err := whose.of(r); got != tt.want || err != nil {
			t.Errorf("%+v, key %q: %v, %v; want %v", tt.c, tt.key, got, err, tt.want)
		}
	}
}

// FuzzTenantKeys reads files of any kind: each is refused with its line, or says of every
// key whose it is.
func FuzzTenantKeys(f *testing.F) {
	for _, seed := range []string{"", "a k", "a k critical\n# b\n\nb sha256:" + strings.Repeat("0f", sha256.Size), "a sha256:zz", "a k\na k", "a\x00b \xff k"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		whose := &tenants{highest: admit.Standard}
		err := whose.read(strings.NewReader(text))
		if err != nil && (!errors.Is(err, ErrTenantKeys) || !strings.HasPrefix(err.Error(), "line ")) {
			t.Fatalf("error %v", err)
		}
		if len(whose.keys) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d keys", len(whose.keys))
		}
		for _, h := range whose.keys {
			if h.tenant == "" || len(h.tenant) > maxTenantName || h.highest > admit.Critical {
				t.Fatalf("holder %+v", h)
			}
		}
	})
}
