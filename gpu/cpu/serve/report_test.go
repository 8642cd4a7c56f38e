package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// An operator is told of what failed, not of legs that nobody wanted any more.
func TestReport(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	upstream := func(cause error) *errs.Error { return &errs.Error{Kind: errs.Upstream, Client: "x", Cause: cause} }
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		err   *errs.Error
		level string
	}{
		{"a fault", t.Context(), upstream(errors.New("boom")), "ERROR"},
		{"a transfer's fault", t.Context(), upstream(transfer.Failure(transfer.ReasonChecksum, nil)), "ERROR"},
		{"the other leg gave up", t.Context(), upstream(transfer.Failure(transfer.ReasonPeerAbort, nil)), "DEBUG"},
		{"canceled", t.Context(), upstream(transfer.Failure(transfer.ReasonCanceled, nil)), "DEBUG"},
		{"the gateway left", over, upstream(errors.New("boom")), "DEBUG"},
		{"the client's fault", t.Context(), &errs.Error{Kind: errs.BadRequest, Client: "x"}, ""},
	} {
		var log bytes.Buffer
		h := &Handler{opt: Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}}
		r := httptest.NewRequestWithContext(tt.ctx, http.MethodPost, "/v1/completions", http.NoBody)
		h.report(r, tt.err)
		if got := log.String(); (got == "") != (tt.level == "") || !strings.Contains(got, tt.level) {
			t.Errorf("%s: %q, want level %q", tt.name, got, tt.level)
		}
	}
}
