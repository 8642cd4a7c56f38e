package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/server/admin"
)

// explainHelp says how to read an answer, and what the words in it mean.
const explainHelp = `Ask a gateway on this machine how it placed a request: which workers it could
have taken, what it knew of each, what each would have cost, which were left out
and why. The id is in the answer's x-request-id header. A gateway remembers its
last thousand placements, and nothing of what was written in them.

An answer to a request with the header x-yardmaster-explain: 1 says the short of
it in x-yardmaster-path: the path, then

  reason      why the prompt was computed there (below)
  policy      what chose the worker: a native policy's name, or name@version
  policy-index  the log index at which that was bound
  stage       canary, where the policy is tried on a share of the sessions
  fallback    why a native policy answered in its place: fuel, trap, refused, busy,
              rows, scores, quarantined, none (nobody was eligible)
  worker      who served; prefill and decode when the two are apart
  next        who would have been chosen otherwise
  hit         prompt tokens the worker was believed to hold, of all
  kv          whether the KV was moved, or computed again, and why
  failovers   workers that did not take the request before
  migrations  times that the stream went on elsewhere

Aggregated because: off (configured so), short_prompt (fewer tokens than
min-prompt), cached (so few are not held already), no_transfer (the worker
exchanges KV with nobody), no_prefill_worker, prefill_busy, predicted_slower,
prefill_failed, leg_refused, many_prompts (several in one request),
no_generation. Disaggregated because: predicted_faster, long_prompt (rates are
not measured yet), forced.

The table has a row for each worker that could have served, and for each that was
left out:

  ATTEMPT   which try of the request; a worker that fails leads to another
  LEG       serve, or prefill where the two are apart
  CHOSEN    * for the worker that was taken
  COST      what the policy compares, the lowest wins; a dash is ineligible
  HIT       prompt tokens that the worker was believed to hold
  QUEUED    prompt tokens that wait there to be computed
  REQUESTS  requests there, those of other gateways included
  SIBLINGS  of them, those with the same beginning of the prompt
  ACTIVE    KV blocks in use
  SHARE     work given to the worker lately, over the mean of those that could serve
  NOTE      path, reason and policy of the one that was taken; what each part of a
            combined policy found, and a shadow; why one was left out`

func (a *app) explainCommand() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "explain REQUEST-ID",
		Short:   "Say why a request went where it went",
		Long:    explainHelp,
		Example: "  yardmaster explain req-4f1c2a\n  yardmaster explain req-4f1c2a -o json",
		Args:    operand("REQUEST-ID"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			found, err := client.explain(c.Context(), args[0])
			if err != nil {
				return err
			}
			heading, rows := explanationTable(found)
			return out.print(a.out, found, heading, rows)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (c *adminClient) explain(ctx context.Context, id string) (*admin.Explanation, error) {
	var found admin.Explanation
	err := c.call(ctx, http.MethodGet, "/admin/explain/"+url.PathEscape(id), nil, &found)
	if fault, ok := errors.AsType[*adminError](err); ok && fault.code == "not_found" {
		return nil, &codedError{exitNotFound, fmt.Errorf("%q: the gateway remembers no such request", id)}
	}
	return &found, err
}

// explanationTable has a row for each candidate and each veto, and for a refusal by
// admission.
func explanationTable(e *admin.Explanation) (heading []string, rows [][]string) {
	heading = []string{"ATTEMPT", "LEG", "WORKER", "CHOSEN", "COST", "HIT", "QUEUED", "REQUESTS", "SIBLINGS", "ACTIVE", "SHARE", "NOTE"}
	for i := range e.Placements {
		rows = append(rows, placementRows(&e.Placements[i], strconv.Itoa(i+1))...)
	}
	return heading, rows
}

func placementRows(p *admin.Placement, attempt string) (rows [][]string) {
	if p.Path == dispatch.PathRefused {
		rows = append(rows, []string{attempt, "admission", "", "", "", "", "", "", "", "", "", noteOf(p, &admin.Candidate{}, true)})
	}
	for i := range p.Candidates {
		rows = append(rows, candidateRow(p, attempt, "serve", p.Worker, &p.Candidates[i]))
	}
	for i := range p.Prefilling {
		rows = append(rows, candidateRow(p, attempt, "prefill", p.Prefill, &p.Prefilling[i]))
	}
	for _, v := range p.Vetoed {
		rows = append(rows, []string{attempt, "", v.Worker, "", "", "", "", "", "", "", "", v.Why})
	}
	return rows
}

func candidateRow(p *admin.Placement, attempt, leg, chosen string, c *admin.Candidate) []string {
	mark := ""
	if c.Worker == chosen {
		mark = "*"
	}
	return []string{
		attempt, leg, c.Worker, mark, number(c.Cost), number(c.HitTokens), number(c.QueuedTokens),
		number(c.Requests), number(c.Siblings), number(c.ActiveBlocks), rounded(c.Share), noteOf(p, c, mark != ""),
	}
}

// noteOf is what is said of a candidate beside its numbers.
func noteOf(p *admin.Placement, c *admin.Candidate, chosen bool) string {
	var notes []string
	if chosen {
		notes = append(notes, p.Path, p.Reason, p.Policy)
		if p.PolicyIndex > 0 {
			notes = append(notes, "bound at "+strconv.FormatUint(p.PolicyIndex, 10))
		}
		if p.Canary {
			notes = append(notes, "canary")
		}
		if p.Fallback != "" {
			notes = append(notes, "fallback: "+p.Fallback)
		}
	}
	for i, v := range c.Parts {
		if i < len(p.Parts) {
			notes = append(notes, p.Parts[i]+" "+number(v))
		}
	}
	if p.Shadow != "" {
		notes = append(notes, "shadow "+p.Shadow+" "+number(c.ShadowCost))
	}
	return strings.Join(notes, ", ")
}

// rounded is a number of which two digits behind the point say enough.
func rounded(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// number is a number in a table; a dash is unknown.
func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', -1, 32)
}
