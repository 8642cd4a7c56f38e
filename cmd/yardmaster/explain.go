package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/server/admin"
)

const (
	explainTimeout = 5 * time.Second
	maxExplanation = 4 << 20 // bytes
)

func (a *app) explainCommand() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "explain REQUEST-ID",
		Short: "Say why a request went where it went",
		Long: `Ask a gateway on this machine how it placed a request: which workers it could
have taken, what it knew of each, what each would have cost, which were left out
and why. The id is in the answer's x-request-id header. A gateway remembers its
last thousand placements, and nothing of what was written in them.

An answer to a request with the header x-yardmaster-explain: 1 says the short of
it in x-yardmaster-path: the path, then

  reason      why the prompt was computed there (below)
  policy      what chose the worker
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
not measured yet), forced.`,
		Example: "  yardmaster explain req-4f1c2a\n  yardmaster explain req-4f1c2a -o json",
		Args:    operand("REQUEST-ID"),
		RunE: func(c *cobra.Command, args []string) error {
			if address == "" {
				e, err := a.load(bind(c))
				if err != nil {
					return err
				}
				address = e.Config.Gateway.Admin
			}
			if address == "" {
				return usage(errors.New("gateway.admin is empty: this configuration has no admin API"))
			}
			found, err := askExplanation(c.Context(), "http://"+address, args[0])
			if err != nil {
				return err
			}
			heading, rows := explanationTable(found)
			return out.print(a.out, found, heading, rows)
		},
	}
	c.Flags().StringVar(&address, "admin", "", "address of the gateway's admin API; the default is gateway.admin")
	out.flag(c)
	return c
}

func askExplanation(ctx context.Context, base, id string) (*admin.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/admin/explain/"+url.PathEscape(id), http.NoBody)
	if err != nil {
		return nil, usage(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no gateway answers: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxExplanation))
	if err != nil {
		return nil, fmt.Errorf("the gateway's answer broke off: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, &codedError{exitNotFound, fmt.Errorf("%q: the gateway remembers no such request", id)}
	default:
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, gjson.GetBytes(body, "error.message").Str)
	}
	var found admin.Explanation
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, fmt.Errorf("the gateway's answer is not understood: %w", err)
	}
	return &found, nil
}

// explanationTable has a row for each candidate and each veto.
func explanationTable(e *admin.Explanation) (heading []string, rows [][]string) {
	heading = []string{"ATTEMPT", "LEG", "WORKER", "CHOSEN", "COST", "HIT", "QUEUED", "REQUESTS", "SIBLINGS", "ACTIVE", "SHARE", "NOTE"}
	for i := range e.Placements {
		p := &e.Placements[i]
		attempt := strconv.Itoa(i + 1)
		add := func(leg, chosen string, candidates []admin.Candidate) {
			for _, c := range candidates {
				mark, note := "", ""
				if c.Worker == chosen {
					mark, note = "*", p.Path+", "+p.Reason+", "+p.Policy
				}
				rows = append(rows, []string{
					attempt, leg, c.Worker, mark, number(c.Cost), number(c.HitTokens), number(c.QueuedTokens),
					number(c.Requests), number(c.Siblings), number(c.ActiveBlocks), number(c.Share), note,
				})
			}
		}
		add("serve", p.Worker, p.Candidates)
		add("prefill", p.Prefill, p.Prefilling)
		for _, v := range p.Vetoed {
			rows = append(rows, []string{attempt, "", v.Worker, "", "", "", "", "", "", "", "", v.Why})
		}
	}
	return heading, rows
}

// number is a number in a table; a dash is unknown.
func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', -1, 32)
}
