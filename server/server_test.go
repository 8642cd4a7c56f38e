package server_test

import (
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
)

func TestStreamThroughOneWorker(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, serve)
	status, h, body, err := r.chat(streamBody, "x-yardmaster-explain", "1")
	if err != nil || status != 200 || body != shownStream {
		t.Errorf("%d %v\n%s", status, err, body)
	}
	if got := h.Get("x-yardmaster-path"); got != "aggregated; reason=short_prompt; policy=least-request; worker=w" {
		t.Errorf("path %q", got)
	}
	status, h, body, err = r.chat(plainBody)
	if err != nil || status != 200 || body != wholeAnswer || h.Get("x-yardmaster-path") != "" {
		t.Errorf("%d %v %v\n%s", status, err, h, body)
	}
	r.idle()
}
