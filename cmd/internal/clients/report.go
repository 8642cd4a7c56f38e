package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report collects the suites' results.
type report struct {
	columns []column
}

type column struct {
	name   string
	client string
	cases  map[string]outcome
	err    error
	took   time.Duration
}

// common are the cases every official client has to have: a suite that lost one
// must not look complete. The order is the table's.
var common = []string{
	"models", "chat", "chat_stream", "chat_stream_usage", "chat_stream_n", "completions", "completions_stream",
	"embeddings", "tools", "logprobs", "request_fields", "answer_fields", "unicode",
	"errors", "retry_after", "retry_forbidden", "retry_multiplies",
	"stream_error", "stream_cut", "stream_ends_early", "heartbeat",
	"cancel_before_headers", "cancel_queued", "cancel_before_token", "cancel_between_tokens", "cancel_whole", "cancel_break",
	"timeout", "keep_alive",
}

func newColumn(s suite, v verdict, err error, took time.Duration) column {
	c := column{name: s.name, client: v.client, cases: map[string]outcome{}, err: err, took: took}
	for _, o := range v.cases {
		c.cases[o.Case] = o
	}
	return c
}

// expect marks as failed the common cases that a suite did not report, unless a
// pattern chose some.
func (r *report) expect(pattern string) {
	if pattern != "" {
		return
	}
	for _, c := range r.columns {
		if c.err != nil || c.name == "curl" {
			continue
		}
		for _, name := range common {
			if _, ok := c.cases[name]; !ok {
				c.cases[name] = outcome{Case: name, Status: failed, Detail: "the suite has no such case"}
			}
		}
	}
}

func (r *report) failed(strict bool) bool {
	for _, c := range r.columns {
		if c.err != nil && (strict || !errors.Is(c.err, errUnavailable)) {
			return true
		}
		for _, o := range c.cases {
			if o.Status == failed {
				return true
			}
		}
	}
	return false
}

// rows are the names of all cases, the common ones first.
func (r *report) rows() []string {
	var extra []string
	for _, c := range r.columns {
		for name := range c.cases {
			if !slices.Contains(common, name) && !slices.Contains(extra, name) {
				extra = append(extra, name)
			}
		}
	}
	slices.Sort(extra)
	return append(slices.Clone(common), extra...)
}

// print writes a table of cases by client, then what is behind each cell that
// says more than ok.
func (r *report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := []string{"case"}
	for _, c := range r.columns {
		header = append(header, c.client)
	}
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, name := range r.rows() {
		row, seen := []string{name}, false
		for _, c := range r.columns {
			o, ok := c.cases[name]
			seen = seen || ok
			row = append(row, cell(o, ok))
		}
		if seen {
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
	}
	_ = t.Flush() // w's own errors are the caller's
	fmt.Fprintln(w)
	for _, c := range r.columns {
		c.details(w)
	}
}

func cell(o outcome, ok bool) string {
	switch {
	case !ok:
		return "-"
	case o.Status == passed:
		return fmt.Sprintf("ok %.0f ms", o.Millis)
	case o.Status == skipped:
		return "skipped"
	}
	return "FAILED"
}

func (c *column) details(w io.Writer) {
	switch {
	case errors.Is(c.err, errUnavailable):
		fmt.Fprintf(w, "%s: SKIPPED: %v\n", c.name, c.err)
	case c.err != nil:
		fmt.Fprintf(w, "%s: FAILED: %v\n", c.name, c.err)
	default:
		fmt.Fprintf(w, "%s: %d cases in %.1f s\n", c.client, len(c.cases), c.took.Seconds())
	}
	var names []string
	for name, o := range c.cases {
		if o.Detail != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		o := c.cases[name]
		fmt.Fprintf(w, "  %s %s: %s\n", o.Status, name, strings.ReplaceAll(strings.TrimSpace(o.Detail), "\n", "\n      "))
	}
}
