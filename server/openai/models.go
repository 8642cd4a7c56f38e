package openai

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// listModels lists every model that a worker is registered for.
func (a *API) listModels(w http.ResponseWriter, r *http.Request) {
	Identify(w, r)
	if _, _, err := a.tenant(r); err != nil {
		WriteError(w, err)
		return
	}
	view := a.deps.View()
	body := []byte(`{"object":"list","data":[`)
	for i, name := range view.Models() {
		if i > 0 {
			body = append(body, ',')
		}
		body = a.appendModel(body, view, name)
	}
	writeJSON(w, append(body, "]}"...))
}

// getModel describes one model. Names may contain slashes, escaped or not.
func (a *API) getModel(w http.ResponseWriter, r *http.Request) {
	Identify(w, r)
	if _, _, err := a.tenant(r); err != nil {
		WriteError(w, err)
		return
	}
	name := chi.URLParam(r, "*")
	if plain, err := url.PathUnescape(name); err == nil && r.URL.RawPath != "" {
		name = plain
	}
	view := a.deps.View()
	if len(view.Serving(name)) == 0 {
		WriteError(w, &errs.Error{Kind: errs.NotFound, Client: fmt.Sprintf("the model %q does not exist", name), Param: "model", Code: "model_not_found"})
		return
	}
	writeJSON(w, a.appendModel(nil, view, name))
}

// appendModel appends a model object. root and parent are as vLLM has them: an
// adapter's are its base model. max_model_len, which vLLM's clients read, is the
// shortest context among the workers that state one.
func (a *API) appendModel(dst []byte, view *fleet.View, name string) []byte {
	dst = append(dst, `{"id":`...)
	dst = openai.AppendString(dst, name)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, a.started, 10)
	dst = append(dst, `,"owned_by":"yardmaster"`...)
	base := name
	var context unit.Tokens
	for _, i := range view.Serving(name) {
		base = view.Workers[i].Models[0]
		if n := view.Workers[i].Capacity.MaxContext; n > 0 && (context == 0 || n < context) {
			context = n
		}
	}
	dst = append(dst, `,"root":`...)
	dst = openai.AppendString(dst, base)
	dst = append(dst, `,"parent":`...)
	if base == name {
		dst = append(dst, "null"...)
	} else {
		dst = openai.AppendString(dst, base)
	}
	if context > 0 {
		dst = append(dst, `,"max_model_len":`...)
		dst = strconv.AppendInt(dst, int64(context), 10)
	}
	return append(dst, '}')
}

func writeJSON(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body) // an error here means that the client left
}
