package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// Fault is an error as the API tells it.
type Fault struct {
	Error struct {
		Message string `json:"message"`
		Code    string `json:"code"` // a stable word; see the sentinels for those of the cluster
	} `json:"error"`
}

// told is an error as the API tells it.
func told(code, message string) (f Fault) {
	f.Error.Message, f.Error.Code = message, code
	return f
}

func fail(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, told(code, message))
}

// busyRetry is after how many seconds a change is worth another try.
const busyRetry = "5"

// toldAs says with which status and word an error is told, and after how many seconds
// to try again, if that helps.
type toldAs struct {
	err    error
	status int
	code   string
	retry  string
}

// clusterFaults are what the cluster's errors are told as; the first that fits counts.
func clusterFaults() []toldAs {
	return []toldAs{
		{ErrUncertain, http.StatusBadGateway, "uncertain", ""},
		{ErrNoLeader, http.StatusServiceUnavailable, "no_leader", ""},
		{ErrUnknownMember, http.StatusNotFound, "not_found", ""},
		{ErrUnknownTenant, http.StatusNotFound, "not_found", ""},
		{ErrBusy, http.StatusServiceUnavailable, "busy", busyRetry},
		{ErrConflict, http.StatusConflict, "conflict", ""},
		{ErrRefused, http.StatusConflict, "refused", ""},
		{ErrInvalid, http.StatusBadRequest, "invalid", ""},
		{context.DeadlineExceeded, http.StatusGatewayTimeout, "timeout", ""},
	}
}

// policyFaults are what errors of policies are told as.
func policyFaults() []toldAs {
	return []toldAs{
		{ErrUncertain, http.StatusBadGateway, "uncertain", ""},
		{ErrUnfit, http.StatusUnprocessableEntity, "unfit", ""},
		{rollout.ErrUnknown, http.StatusNotFound, "not_found", ""},
		{rollout.ErrInvalid, http.StatusBadRequest, "invalid", ""},
		{rollout.ErrExists, http.StatusConflict, "exists", ""},
		{rollout.ErrBound, http.StatusConflict, "bound", ""},
		{rollout.ErrPinned, http.StatusConflict, "pinned", ""},
		{rollout.ErrQuarantined, http.StatusConflict, "quarantined", ""},
		{rollout.ErrConflict, http.StatusConflict, "conflict", ""},
		{rollout.ErrNothing, http.StatusConflict, "nothing", ""},
		{rollout.ErrFull, http.StatusInsufficientStorage, "full", ""},
	}
}

// failWith tells an error of the cluster.
func failWith(w http.ResponseWriter, err error) { failAs(w, err, clusterFaults()) }

// failPolicy tells an error of policies, or of the cluster.
func failPolicy(w http.ResponseWriter, err error) {
	failAs(w, err, append(policyFaults(), clusterFaults()...))
}

func failAs(w http.ResponseWriter, err error, faults []toldAs) {
	at := slices.IndexFunc(faults, func(k toldAs) bool { return errors.Is(err, k.err) })
	if at < 0 {
		fail(w, http.StatusInternalServerError, "internal", err.Error())
		return
	}
	if retry := faults[at].retry; retry != "" {
		w.Header().Set("Retry-After", retry)
	}
	fail(w, faults[at].status, faults[at].code, err.Error())
}
