package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/rollout"
)

const (
	// Signature is the header with an upload's detached signature, in base64.
	Signature = "X-Yardmaster-Signature"
	// pushTime bounds an upload: its checks take ten seconds at most, and then a
	// majority has to store it.
	pushTime = 60 * time.Second
)

// policiesAPI serves /admin/policies and /admin/bindings.
type policiesAPI struct{ policies Policies } // nil where there are none

func (a *policiesAPI) mount(r chi.Router) {
	r.Group(func(r chi.Router) {
		r.Use(present(a.policies != nil, "no_policies", "this process takes no policies: ask a planner, or a gateway that was started with --join"))
		r.Get("/admin/policies", a.list)
		r.Post("/admin/policies", a.push)
		r.Get("/admin/policies/{ref}", a.show)
		r.Get("/admin/policies/{ref}/module", a.module)
		r.Delete("/admin/policies/{ref}", a.remove)
		r.Post("/admin/bindings", a.change)
	})
}

func (a *policiesAPI) list(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, list(a.policies.Table(), a.policies.Here()))
}

func (a *policiesAPI) push(w http.ResponseWriter, r *http.Request) {
	extend(w, pushTime+time.Second)
	module, err := io.ReadAll(upload(w, r, rollout.MaxModule))
	if tooLarge(err) {
		fail(w, http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("a policy has at most %d MiB", rollout.MaxModule>>20))
		return
	}
	var signature []byte
	if text := r.Header.Get(Signature); err == nil && text != "" {
		signature, err = base64.StdEncoding.DecodeString(text)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid", "the upload is not understood: "+err.Error())
		return
	}
	ctx, cancel := lasting(r.Context(), pushTime)
	defer cancel()
	v, report, err := a.policies.Push(ctx, module, signature)
	switch {
	case errors.Is(err, ErrUnfit):
		answer(w, http.StatusUnprocessableEntity, struct {
			Fault
			PolicyPushed
		}{told("unfit", err.Error()), PolicyPushed{Report: report}})
	case err != nil:
		failPolicy(w, err)
	default:
		answer(w, http.StatusCreated, PolicyPushed{versionOf(a.policies.Table(), &v), report})
	}
}

// find is the version that the path names; it answers by itself when there is none.
// What this node does not know may have come to another one a moment ago.
func (a *policiesAPI) find(w http.ResponseWriter, r *http.Request) (v rollout.Version, ok bool) {
	ref, err := pathParam(r, "ref")
	named := (*rollout.Table).Look
	if r.Method == http.MethodDelete {
		named = (*rollout.Table).Find // what is out of service is deleted by its whole name
	}
	if err == nil {
		v, err = named(a.policies.Table(), ref)
	}
	// A quarantined version may have a successor there, too.
	if (errors.Is(err, rollout.ErrUnknown) || errors.Is(err, rollout.ErrQuarantined) || err == nil && v.Quarantined > 0) && a.catch(r, askTime) == nil {
		v, err = named(a.policies.Table(), ref)
	}
	if k := nativeKind(ref, ""); k != nil && errors.Is(err, rollout.ErrUnknown) {
		err = fmt.Errorf("%w: %s", rollout.ErrUnknown, k.about(ref))
	}
	if err != nil {
		err = hinted(err, ref, uploaded(a.policies.Table(), ""))
		failPolicy(w, err)
		return v, false
	}
	return v, true
}

// catch brings this node up to date before it decides what a name means.
func (a *policiesAPI) catch(r *http.Request, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	return a.policies.Catch(ctx)
}

func (a *policiesAPI) show(w http.ResponseWriter, r *http.Request) {
	v, ok := a.find(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	t := a.policies.Table()
	out := PolicyShown{PolicyVersion: versionOf(t, &v), StateKeys: t.State(v.Policy).Len()}
	if v.Report != "" {
		out.Report = []byte(v.Report)
	}
	var err error
	if out.Manifest, err = a.policies.Manifest(ctx, v.Digest); err != nil {
		failPolicy(w, err)
		return
	}
	answer(w, http.StatusOK, out)
}

func (a *policiesAPI) module(w http.ResponseWriter, r *http.Request) {
	v, ok := a.find(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	module, err := a.policies.Module(ctx, v.Digest)
	if err != nil {
		failPolicy(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/wasm")
	extend(w, stallTime)
	_, _ = w.Write(module) // a client that left needs no answer
}

func (a *policiesAPI) remove(w http.ResponseWriter, r *http.Request) {
	extend(w, 2*changeTime+time.Second)
	if err := a.catch(r, changeTime); err != nil {
		failPolicy(w, err)
		return
	}
	v, ok := a.find(w, r)
	if !ok {
		return
	}
	ctx, cancel := lasting(r.Context(), changeTime)
	defer cancel()
	if err := a.policies.Delete(ctx, v.Digest); err != nil {
		failPolicy(w, err)
		return
	}
	answer(w, http.StatusOK, list(a.policies.Table(), a.policies.Here()))
}

func (a *policiesAPI) change(w http.ResponseWriter, r *http.Request) {
	var want PolicyChange
	if !read(w, r, &want) {
		return
	}
	extend(w, 2*changeTime+time.Second)
	if err := a.catch(r, changeTime); err != nil {
		failPolicy(w, err)
		return
	}
	c, err := want.change(a.policies.Table())
	if err == nil {
		ctx, cancel := lasting(r.Context(), changeTime)
		defer cancel()
		err = a.policies.Change(ctx, c)
	}
	if err != nil {
		failPolicy(w, err)
		return
	}
	t := a.policies.Table()
	b, _ := t.Binding(c.Kind, c.Model) // none, once it was cleared
	b.Kind, b.Model = c.Kind, c.Model
	answer(w, http.StatusOK, a.policies.Here().of(bindingOf(t, &b)))
}
