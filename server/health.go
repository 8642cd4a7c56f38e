package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/server/openai"
)

var (
	errDraining = errors.New("the gateway is shutting down")
	errNoRoute  = errors.New("no worker is registered")
)

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
	for _, c := range s.checks() {
		err := c.Ready()
		if err == nil {
			fmt.Fprintf(&report, "[+]%s ok\n", c.Name)
			continue
		}
		fmt.Fprintf(&report, "[-]%s failed: %v\n", c.Name, err)
		if failed == nil {
			failed = err
		}
	}
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

func (s *Server) checks() []Check {
	own := []Check{
		{"serving", func() error {
			if s.draining.Load() {
				return errDraining
			}
			return nil
		}},
		{"workers", func() error {
			if len(s.deps.View().Workers) == 0 {
				return errNoRoute
			}
			return nil
		}},
	}
	return append(own, s.deps.Checks...)
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // an error here means that the client left
}
