package agent

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPlannerErrorIsOneLine(t *testing.T) {
	dialing := `connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:8090: connect: connection refused"`
	for _, tt := range []struct {
		err  error
		want string
	}{
		{status.Error(codes.Unavailable, dialing), "planner 10.0.0.1:8090 unreachable: connection refused"},
		{status.Error(codes.Unavailable, "this planner is stopping"), "planner 10.0.0.1:8090: this planner is stopping"},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "planner 10.0.0.1:8090: context deadline exceeded"},
		{io.EOF, "planner 10.0.0.1:8090: EOF"},
	} {
		e := &plannerError{"10.0.0.1:8090", tt.err}
		if e.Error() != tt.want {
			t.Errorf("%s, want %s", e, tt.want)
		}
		if !errors.Is(e, tt.err) || status.Code(e) != status.Code(tt.err) {
			t.Errorf("%s: the cause is lost", e)
		}
	}
}
