package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/server/admin"
)

// binding is the flags of the commands that move a binding.
type binding struct {
	address, kind, model string
	out                  output
}

func (b *binding) flags(c *cobra.Command) {
	c.Flags().StringVar(&b.kind, "kind", "", "what is decided: router, admission, autoscaler or observer; the default is the policy's or, where none is named, that of the one binding that fits")
	c.Flags().StringVar(&b.model, "model", "", "only for this model; the default is all")
	adminFlag(c, &b.address)
	b.out.flag(c)
}

// bind asks for a verb and prints the binding.
func (a *app) bind(c *cobra.Command, b *binding, change admin.PolicyChange) error {
	client, err := a.adminAt(b.address)
	if err != nil {
		return err
	}
	change.Kind, change.Model = b.kind, b.model
	var now admin.PolicyBinding
	if err := client.call(c.Context(), http.MethodPost, "/admin/bindings", change, &now); err != nil {
		return err
	}
	if err := b.out.print(a.out, now, bindingHeading, [][]string{bindingRow(&now)}); err != nil {
		return err
	}
	if b.model != "" && change.Verb != "clear" {
		a.warnOfModel(c, client, b.model)
	}
	if now.Late != "" {
		return &codedError{exitPartial, fmt.Errorf("it is agreed at index %d and not ready here yet: %s; what decided before decides on (`yardmaster policy list` shows how far a node is, --admin names another)", now.Index, now.Late)}
	}
	return nil
}

// warnOfModel says that nobody serves the model that something was bound for, which may
// be a slip of the pen or come first.
func (a *app) warnOfModel(c *cobra.Command, client *adminClient, model string) {
	var found admin.Workers
	if err := client.call(c.Context(), http.MethodGet, "/admin/workers", nil, &found); err != nil || len(found.Workers) == 0 {
		return // nobody knows
	}
	if !slices.ContainsFunc(found.Workers, func(w admin.Worker) bool { return slices.Contains(w.Models, model) }) {
		fmt.Fprintf(a.err, "yardmaster: warning: no worker serves a model called %q now; `yardmaster policy clear --kind KIND --model %s` takes the binding back\n", model, model)
	}
}

// stageHelp explains how policies are named.
const stageHelp = `A POLICY is name@version, a name for its newest version, digits of a digest, or the
name of a policy of the binary (native:NAME where an upload has the same). Several
decide together: each one's scores are stretched to between 0 and 1 and added up by
weight, as in "kv-cost=3 least-loaded=1". Parameters follow in brackets, as in
"my-policy(hit_weight=2)" or "sticky(hold=40)": those that the upload declares, or
those of the policy of the binary.`

// wants reads policies as they are typed: NAME[=WEIGHT][(PARAM=VALUE ...)].
func wants(args []string) ([]admin.PolicyPartWant, error) {
	var out []admin.PolicyPartWant
	for _, arg := range args {
		want, err := wanted(arg)
		if err != nil {
			return nil, usage(err)
		}
		out = append(out, want)
	}
	return out, nil
}

func wanted(arg string) (admin.PolicyPartWant, error) {
	p, err := native.ParsePart(arg)
	return admin.PolicyPartWant{Policy: p.Name, Weight: p.Weight, Params: p.Params}, err
}

func (a *app) policyShadow() *cobra.Command {
	var b binding
	var off bool
	c := &cobra.Command{
		Use:   "shadow POLICY...",
		Short: "Let a policy decide without effect, and count how often it differs",
		Long: `Let a policy see every request and decide without effect. How often it would have
chosen otherwise is in the metric yardmaster_policy_shadow_total and in what explain
says of a request. --off ends that.

` + stageHelp,
		Example: "  yardmaster policy shadow least-loaded\n  yardmaster policy shadow --off",
		RunE: func(c *cobra.Command, args []string) error {
			if off == (len(args) > 0) {
				return usage(fmt.Errorf("name a policy, or say --off: %s", c.UseLine()))
			}
			parts, err := wants(args)
			if err != nil {
				return err
			}
			return a.bind(c, &b, admin.PolicyChange{Verb: "shadow", Parts: parts})
		},
	}
	c.Flags().BoolVar(&off, "off", false, "end it")
	b.flags(c)
	return c
}

func (a *app) policyCanary() *cobra.Command {
	var b binding
	c := &cobra.Command{
		Use:   "canary SHARE [POLICY...]",
		Short: "Let a policy decide for a share of the sessions",
		Long: `Let a policy decide for a share of the sessions. Without a POLICY it is the canary
that there is, with another share, or else the shadow. Whoever is in the share stays
in it while it grows; 0% ends it.

A session is the request's session header (x-session-id), its prompt_cache_key or
its user, whichever comes first; requests without one are drawn one by one.

` + stageHelp,
		Example: "  yardmaster policy canary 5% least-loaded\n  yardmaster policy canary 25%",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("SHARE is missing: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			share, err := parseShare(args[0])
			if err != nil {
				return usage(err)
			}
			parts, err := wants(args[1:])
			if err != nil {
				return err
			}
			return a.bind(c, &b, admin.PolicyChange{Verb: "canary", Share: share, Parts: parts})
		},
	}
	b.flags(c)
	return c
}

// parseShare reads a share, 5% or 0.05.
func parseShare(text string) (float64, error) {
	number, hundredths := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if hundredths {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) {
		return 0, fmt.Errorf("the share %q is not between 0%% and 100%%", text)
	}
	return share, nil
}

func (a *app) policyPromote() *cobra.Command {
	var b binding
	c := &cobra.Command{
		Use:   "promote [POLICY...]",
		Short: "Make a policy decide",
		Long: `Make a policy decide for all. Without a POLICY it is the canary, or else the shadow.
What decided before is kept for rollback.

` + stageHelp,
		Example: "  yardmaster policy promote\n  yardmaster policy promote least-loaded@1.1.0\n  yardmaster policy promote --model llama-70b \"my-policy=3(hit_weight=2)\" least-loaded=1\n  yardmaster policy promote sticky",
		RunE: func(c *cobra.Command, args []string) error {
			parts, err := wants(args)
			if err != nil {
				return err
			}
			return a.bind(c, &b, admin.PolicyChange{Verb: "promote", Parts: parts})
		},
	}
	b.flags(c)
	return c
}

// policyVerb is a command that only moves a binding.
func (a *app) policyVerb(verb, short, long, example string) *cobra.Command {
	var b binding
	c := &cobra.Command{
		Use: verb, Short: short, Long: long, Example: example,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.bind(c, &b, admin.PolicyChange{Verb: verb}) },
	}
	b.flags(c)
	return c
}

func (a *app) policyRollback() *cobra.Command {
	return a.policyVerb("rollback", "Undo the last step",
		"Undo the last step: end the canary or, where there is none, have the policy decide\nthat decided before. Eight steps are remembered.",
		"  yardmaster policy rollback\n  yardmaster policy rollback --model llama-70b")
}

func (a *app) policyPin() *cobra.Command {
	return a.policyVerb("pin", "Let nobody change a binding before it is unpinned",
		"Let no verb but unpin change a binding. A policy that fails is taken out of service\nall the same.", "  yardmaster policy pin --model llama-70b")
}

func (a *app) policyUnpin() *cobra.Command {
	return a.policyVerb("unpin", "Let a binding be changed again", "Let a pinned binding be changed again.", "  yardmaster policy unpin --model llama-70b")
}

func (a *app) policyClear() *cobra.Command {
	return a.policyVerb("clear", "Remove a binding with its history",
		"Remove a binding with its history: then what is bound for all models decides, and\nwithout that what the nodes' configuration names.", "  yardmaster policy clear --model llama-70b")
}
