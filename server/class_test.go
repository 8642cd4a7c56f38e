package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// clerk notes the class of what it admits.
type clerk struct{ seen admit.Class }

func (*clerk) Name() string { return "clerk" }

func (c *clerk) Admit(a *admit.Ask) admit.Verdict {
	c.seen = a.Class
	return admit.Verdict{}
}

// A client may claim the class that its operator lets it, and may always ask for less.
func TestClassesAreClaimed(t *testing.T) {
	highest := func(c admit.Class) func(*http.Request) (string, admit.Class, error) {
		return func(*http.Request) (string, admit.Class, error) { return "acme", c, nil }
	}
	for _, tt := range []struct {
		tenant  func(*http.Request) (string, admit.Class, error)
		claimed string
		want    admit.Class
	}{
		{nil, "critical", admit.Standard},
		{nil, "background", admit.Background},
		{highest(admit.Standard), "critical", admit.Standard},
		{highest(admit.Critical), "critical", admit.Critical},
		{highest(admit.Critical), "", admit.Standard},
		{highest(admit.Critical), "urgent", admit.Standard},
		{highest(admit.Batch), "", admit.Batch},
		{highest(admit.Batch), "background", admit.Background},
	} {
		c := &clerk{seen: 99}
		r := newRig(t, rigConfig{admission: c, tenant: tt.tenant})
		r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[]}`)
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"a"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Yardmaster-Class", tt.claimed)
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if c.seen != tt.want {
			t.Errorf("claimed %q: %v, want %v", tt.claimed, c.seen, tt.want)
		}
	}
}
