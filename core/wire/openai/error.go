package openai

import (
	"github.com/yardmaster/yardmaster/core/errs"
)

// StatusClientGone is the status under which a request whose client left is
// logged. It is never sent.
const StatusClientGone = 499

// Status is the HTTP status of a failure of kind k.
func Status(k errs.Kind) int {
	switch k {
	case errs.BadRequest:
		return 400
	case errs.Unauthorized:
		return 401
	case errs.Forbidden:
		return 403
	case errs.NotFound:
		return 404
	case errs.TooLarge:
		return 413
	case errs.Saturated:
		return 429
	case errs.NoCapacity:
		return 503
	case errs.Upstream:
		return 502
	case errs.Timeout:
		return 504
	case errs.Canceled:
		return StatusClientGone
	case errs.Internal:
	}
	return 500
}

// ErrorType is the "type" of the error envelope for kind k, as OpenAI's
// clients know it.
func ErrorType(k errs.Kind) string {
	switch k {
	case errs.BadRequest, errs.NotFound, errs.TooLarge:
		return "invalid_request_error"
	case errs.Unauthorized:
		return "authentication_error"
	case errs.Forbidden:
		return "permission_error"
	case errs.Saturated:
		return "rate_limit_error"
	case errs.NoCapacity:
		return "service_unavailable_error"
	case errs.Upstream:
		return "upstream_error"
	case errs.Timeout:
		return "timeout_error"
	case errs.Canceled:
		return "request_canceled"
	case errs.Internal:
	}
	return "server_error"
}

// AppendError appends the error envelope
//
//	{"error":{"message":…,"type":…,"param":…|null,"code":"…"}}
//
// to dst. The code is a string, as OpenAI's own: e.Code, or the kind's name.
// The cause is not sent. The same bytes serve as the body of a refused request
// and as the payload of an error event in the middle of a stream.
func AppendError(dst []byte, e *errs.Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendString(dst, e.Client)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, ErrorType(e.Kind))
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = AppendString(dst, e.Param)
	}
	dst = append(dst, `,"code":`...)
	code := e.Code
	if code == "" {
		code = e.Kind.String()
	}
	dst = AppendString(dst, code)
	return append(dst, "}}"...)
}
