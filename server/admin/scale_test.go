package admin

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// fakeScale takes what makes sense, and fails as it is told.
type fakeScale struct {
	status ScaleStatus
	got    []ScaleChange
	err    error
}

func (f *fakeScale) Status() ScaleStatus { return f.status }

func (f *fakeScale) Change(_ context.Context, c ScaleChange) error {
	f.got = append(f.got, c)
	return f.err
}

func TestScale(t *testing.T) {
	f := &fakeScale{status: ScaleStatus{Policy: "sla", Actuator: "advisory", Pools: []ScalePool{{Model: "m", Role: "decode", Desired: new(uint32(2)), Ready: 1, Least: 1}}}}
	steps := []struct {
		method, body string
		err          error
		code         int
		has          string
		changes      int // so far
	}{
		{"GET", "", nil, 200, `{"policy":"sla","actuator":"advisory","budget":0,"pools":[{"model":"m","role":"decode","desired":2,"ready":1,`, 0},
		{"POST", `{"verb":"set","model":"m","role":"decode","desired":0}`, nil, 200, `"pools"`, 1},
		{"POST", `{"verb":"hold"}`, nil, 200, `"pools"`, 2},
		{"POST", `{"verb":"release"}`, fmt.Errorf("look: %w", ErrScaleConflict), 409, `"code":"conflict"`, 3},
		{"POST", `{"verb":"release"}`, ErrNoLeader, 503, `"code":"no_leader"`, 4},
		{"POST", `{"verb":"release"}`, fmt.Errorf("%w: too many", ErrInvalid), 400, `too many`, 5},
		{"POST", `{"verb":"grow"}`, nil, 400, `is not one of set, hold, release`, 5},
		{"POST", `{"verb":"hold","model":"m"}`, nil, 400, `about the whole plan`, 5},
		{"POST", `{"verb":"set","model":"m","role":"decode"}`, nil, 400, `set needs`, 5},
		{"POST", `{"verb":"set","model":"m","role":"decode","desired":99999}`, nil, 400, `set needs`, 5},
		{"POST", `{"verb":"set","replicas":1}`, nil, 400, `not understood`, 5},
		{"POST", `{"verb":"set","model":"m","role":"decode","desired":-1}`, nil, 400, `not understood`, 5},
	}
	for _, s := range steps {
		f.err = s.err
		code, text := scaleCall(t, Parts{Scale: f}, s.method, s.body)
		if code != s.code || !strings.Contains(text, s.has) || len(f.got) != s.changes {
			t.Errorf("%s %s: %d %s, %d changes", s.method, s.body, code, text, len(f.got))
		}
	}
	for _, method := range []string{"GET", "POST"} {
		if code, text := scaleCall(t, Parts{}, method, "{}"); code != 404 || !strings.Contains(text, `"code":"no_scale"`) {
			t.Errorf("%s without pools: %d %s", method, code, text)
		}
	}
}

func scaleCall(t *testing.T, parts Parts, method, body string) (code int, text string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost/admin/scale", strings.NewReader(body))
	r.Header.Set(Intent, "1")
	w := httptest.NewRecorder()
	Handler(parts).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}
