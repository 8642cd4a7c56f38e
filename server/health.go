package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/server/openai"
)

var (
	errDraining = errors.New("the gateway is shutting down")
	errNobody   = errors.New("no worker is registered")
	errNoDecode = errors.New("no worker that can generate (role decode or both) is up")
)

// maxListed bounds the models that one report lists.
const maxListed = 64

// livez says that the process serves. Nothing else belongs in it: whoever asks
// restarts us when it fails.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) {
	plain(w, http.StatusOK, "ok\n")
}

// readyz says whether requests should come here. With ?verbose it lists the
// checks one a line, else a failure is an OpenAI error.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	var report strings.Builder
	var failed error
	models := s.census()
	for _, c := range s.checks(models) {
		err := c.Ready()
		if err == nil {
			fmt.Fprintf(&report, "[+]%s ok%s\n", c.Name, c.news())
			continue
		}
		fmt.Fprintf(&report, "[-]%s failed: %v\n", c.Name, err)
		if failed == nil {
			failed = err
		}
	}
	describe(&report, models)
	switch {
	case r.URL.Query().Has("verbose") && failed == nil:
		plain(w, http.StatusOK, report.String()+"ready\n")
	case r.URL.Query().Has("verbose"):
		plain(w, http.StatusServiceUnavailable, report.String()+"not ready\n")
	case failed == nil:
		plain(w, http.StatusOK, "ok\n")
	default:
		openai.WriteError(w, &errs.Error{Kind: errs.NoCapacity, Client: failed.Error(), Code: "not_ready"})
	}
}

// news is what there is to say of a check that passed, to be put after it.
func (c *Check) news() string {
	if c.News == nil {
		return ""
	}
	if said := c.News(); said != "" {
		return ": " + said
	}
	return ""
}

func (s *Server) checks(models []staff) []Check {
	own := []Check{
		{Name: "serving", Ready: func() error {
			if s.draining.Load() {
				return errDraining
			}
			return nil
		}},
		{Name: "workers", Ready: func() error { return s.enough(models) }},
	}
	return append(own, s.deps.Checks...)
}

// staff is who works for one model, by role.
type staff struct {
	model string
	roles [fleet.RoleBoth + 1]struct{ up, all int }
}

// generates reports whether the model can be served: prefill workers alone give
// no token.
func (s *staff) generates() bool { return s.roles[fleet.RoleDecode].up+s.roles[fleet.RoleBoth].up > 0 }

// census counts the workers of each model. One is up that is not draining, is
// not left out for connections that it refused, and answers as far as the fleet
// knows.
func (s *Server) census() []staff {
	lined := s.deps.Dispatcher.Load().Columns(s.deps.View())
	now := s.deps.Clock.Now()
	var out []staff
	for _, model := range lined.View.Models() {
		one := staff{model: model}
		for _, i := range lined.View.Serving(model) {
			w := &lined.View.Workers[i]
			role := &one.roles[w.Role&fleet.RoleBoth]
			role.all++
			if !w.Draining && !lined.Slots[i].OutOfService(now) && (s.deps.Answers == nil || s.deps.Answers(w.ID)) {
				role.up++
			}
		}
		out = append(out, one)
	}
	return out
}

// enough is nil when at least one model can be served.
func (s *Server) enough(models []staff) error {
	switch {
	case len(models) > 0:
	case s.deps.Absent != "":
		return errors.New(s.deps.Absent)
	default:
		return errNobody
	}
	for i := range models {
		if models[i].generates() {
			return nil
		}
	}
	return errNoDecode
}

// describe has a line for each model: how many of its workers are up.
func describe(b *strings.Builder, models []staff) {
	for i := range models {
		if i == maxListed {
			fmt.Fprintf(b, "   and %d more models\n", len(models)-i)
			return
		}
		m := &models[i]
		fmt.Fprintf(b, "   model %q: workers up", m.model)
		sep := ": "
		for role := fleet.RolePrefill; role <= fleet.RoleBoth; role++ {
			if n := m.roles[role]; n.all > 0 {
				fmt.Fprintf(b, "%s%s %d of %d", sep, role, n.up, n.all)
				sep = ", "
			}
		}
		if !m.generates() {
			b.WriteString("; none can generate")
		}
		b.WriteByte('\n')
	}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // an error here means that the client left
}
