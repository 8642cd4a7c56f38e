package group

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// A peer that is down for long costs two lines, another one two more.
func TestATroubleIsToldTwice(t *testing.T) {
	var buf bytes.Buffer
	log := textLogger(&buf)
	var said repeats
	library := hcLogger{Logger: hclog.NewNullLogger(), slog: log, said: &said}.Named("raft")
	for i := range 100 {
		library.Error("failed to heartbeat to", "peer", "a:1", "error", fmt.Sprint("refused ", i))
		library.Error("failed to heartbeat to", "peer", "b:1", "error", "refused")
	}
	said.over(time.Now(), log)
	if warned := strings.Count(buf.String(), "level=WARN"); warned != 2 || strings.Contains(buf.String(), "no more") {
		t.Errorf("%d warnings in %s", warned, buf.String())
	}
	said.over(time.Now().Add(2*quietAfter), log)
	if over := strings.Count(buf.String(), `level=INFO msg="no more: failed to heartbeat to"`); over != 2 || !strings.Contains(buf.String(), "times=100") {
		t.Errorf("%d are over in %s", over, buf.String())
	}
	library.Error("failed to heartbeat to", "peer", "a:1", "error", "refused")
	if warned := strings.Count(buf.String(), "level=WARN"); warned != 3 {
		t.Errorf("%d warnings", warned)
	}
	for i := range 2 * maxTroubles {
		library.Error("failed to heartbeat to", "peer", i)
	}
	if len(said.troubles) > maxTroubles {
		t.Errorf("%d are remembered", len(said.troubles))
	}
}
