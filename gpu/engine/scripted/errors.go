package scripted

import (
	"errors"
	"fmt"
	"net/http"
)

// errStreamError says that a stream ended with the script's error event.
var errStreamError = errors.New("scripted: error event sent")

// errorAfter reports whether the script breaks the stream after n tokens.
func (w *writer) errorAfter(n int) bool {
	g := w.x.act.Generate
	return g != nil && g.Error != nil && g.Error.After == n
}

// errorEvent writes the script's error event.
func (w *writer) errorEvent() error {
	e := w.x.act.Generate.Error
	body := e.Body
	if body == "" {
		body = `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}`
	}
	if err := w.data([]byte(body)); err != nil || !e.Done {
		return err
	}
	return w.data([]byte("[DONE]"))
}

// scriptedError answers with an engine's error.
func (x *exchange) scriptedError(e *ErrorBody) error {
	body := errorBody{Message: e.Message, Type: e.Type, Code: e.Status}
	preset := errorKinds()[orDefault(e.Kind, "internal")]
	body.Code = orDefault(body.Code, preset.status)
	body.Type = orDefault(body.Type, preset.kind)
	if body.Message == "" {
		body.Message = preset.message
		if e.Kind == "context" {
			limit := int(x.engine().opts.MaxContext)
			body.Message = fmt.Sprintf(preset.message, limit, limit+1)
			param := "input_tokens"
			body.Param = &param
		}
	}
	if e.RetryAfter != "" {
		x.w.Header().Set("Retry-After", e.RetryAfter)
	}
	if e.Flat {
		return x.json(body.Code, struct {
			Object    string `json:"object"`
			errorBody `json:",inline"`
		}{"error", body})
	}
	return x.json(body.Code, map[string]errorBody{"error": body})
}

// errorKinds are the errors that a script can ask for by name.
func errorKinds() map[string]problem {
	return map[string]problem{
		"busy":       {http.StatusServiceUnavailable, "ServiceUnavailableError", "The engine is busy.", ""},
		"rate_limit": {http.StatusTooManyRequests, "RateLimitError", "Too many requests.", ""},
		"context": {
			http.StatusBadRequest, "BadRequestError",
			"This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens.", "",
		},
		"model":    {http.StatusNotFound, "NotFoundError", "The model does not exist.", ""},
		"internal": {http.StatusInternalServerError, "InternalServerError", "Internal server error", ""},
	}
}
