package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) policyList() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "list",
		Short: "List what is bound, and the policies that were uploaded",
		Long: `List what is bound where, and the versions that were uploaded. HERE is how far the
asked node is with a version: ready, or why not; then what decided before decides on.`,
		Example: "  yardmaster policy list\n  yardmaster policy list -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var found admin.PolicyList
			if err := client.call(c.Context(), http.MethodGet, "/admin/policies", nil, &found); err != nil {
				return err
			}
			return a.printPolicies(&out, &found)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) printPolicies(out *output, l *admin.PolicyList) error {
	if l.Here.Behind != "" {
		fmt.Fprintf(a.err, "yardmaster: warning: %s decides by what was bound before: %s\n", l.Here.Node, l.Here.Behind)
	}
	for i := range l.Here.Refusing {
		a.warnOfRefusal(l.Here.Node, &l.Here.Refusing[i])
	}
	if out.String() == "table" && len(l.Bindings) > 0 {
		var rows [][]string
		for i := range l.Bindings {
			rows = append(rows, bindingRow(&l.Bindings[i]))
		}
		if err := out.print(a.out, nil, bindingHeading, rows); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	var rows [][]string
	for i := range l.Versions {
		v := &l.Versions[i]
		here := "ready"
		if why, not := l.Here.NotReady[v.Digest]; not {
			here = why
		}
		if v.Quarantined != "" {
			here = "quarantined: " + v.Quarantined
		}
		rows = append(rows, []string{
			v.Policy + "@" + v.Release, v.Kind, v.Digest[:min(12, len(v.Digest))], strconv.FormatInt(v.Bytes, 10), orDash(v.Signer),
			time.UnixMilli(v.UploadedMS).UTC().Format(time.RFC3339), orDash(strings.Join(v.Bound, ", ")), here,
		})
	}
	return out.print(a.out, l, []string{"POLICY", "KIND", "DIGEST", "BYTES", "SIGNER", "UPLOADED", "BOUND", "HERE"}, rows)
}

// warnOfRefusal says that a node refuses everything, and what ends it.
func (a *app) warnOfRefusal(node string, r *admin.PolicyRefusing) {
	whose, model := "every request", ""
	if r.Model != "" {
		whose, model = "every request for "+r.Model, " --model "+r.Model
	}
	fmt.Fprintf(a.err, "yardmaster: warning: %s refuses %s: %s fails closed and is out of service or not ready; promote another one, or `yardmaster policy rollback --kind %s%s`\n", node, whose, r.Policy, r.Kind, model)
}

var bindingHeading = []string{"DECIDES", "MODEL", "ACTIVE", "CANARY", "SHADOW", "BEFORE", "PINNED", "INDEX"}

func bindingRow(b *admin.PolicyBinding) []string {
	model, canary, before, pinned := b.Model, partNames(b.Canary), "-", "-"
	if model == "" {
		model = "all"
	}
	if len(b.Canary) > 0 {
		canary += " for " + percent(b.CanaryShare)
	}
	if len(b.Previous) > 0 {
		before = decides(b, b.Previous[0])
	}
	if b.Pinned {
		pinned = "yes"
	}
	active := decides(b, b.Active)
	if b.Refuses != "" {
		active += " (refuses all)"
	}
	return []string{b.Kind, model, active, canary, partNames(b.Shadow), before, pinned, strconv.FormatUint(b.Index, 10)}
}

// decides is what decides where a stage is active, which may be empty.
func decides(b *admin.PolicyBinding, stage []admin.PolicyPart) string {
	switch {
	case len(stage) > 0:
		return partNames(stage)
	case b.Kind == "observer":
		return "-"
	case b.Model != "":
		return "(as for all models)"
	case b.Configured == "":
		return "(as configured)" // at other nodes: this one does not decide that
	}
	return b.Configured + " (configured)"
}

// percent is a share as people write it.
func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 6, 64) + "%" }

// partNames are the policies of a stage with their weights and parameters.
func partNames(parts []admin.PolicyPart) string {
	var names []string
	for _, p := range parts {
		name := p.Policy
		if len(parts) > 1 {
			name += "=" + strconv.FormatFloat(p.Weight, 'g', -1, 64)
		}
		var params []string
		for param, v := range p.Params {
			params = append(params, param+"="+strconv.FormatFloat(v, 'g', -1, 64))
		}
		if slices.Sort(params); len(params) > 0 {
			name += "(" + strings.Join(params, " ") + ")"
		}
		names = append(names, name)
	}
	return orDash(strings.Join(names, " + "))
}

func (a *app) policyShow() *cobra.Command {
	var address, module string
	var out output
	c := &cobra.Command{
		Use:   "show POLICY",
		Short: "Show one version: what it asks for, how it was checked, where it is bound",
		Long: `Show one version, named by name@version, by name for the newest, or by the first
digits of its digest. --module writes the bytes as they were uploaded into a file.`,
		Example: "  yardmaster policy show least-loaded\n  yardmaster policy show least-loaded@1.0.0 -o json\n  yardmaster policy show least-loaded --module copy.wasm",
		Args:    operand("POLICY"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var found admin.PolicyShown
			if err := client.call(c.Context(), http.MethodGet, policyPath(args[0]), nil, &found); err != nil {
				return err
			}
			if module != "" {
				return a.saveModule(c, client, &found, module)
			}
			heading, rows := shownTable(&found)
			return out.print(a.out, found, heading, rows)
		},
	}
	c.Flags().StringVar(&module, "module", "", "write the module into this file")
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func policyPath(ref string) string { return "/admin/policies/" + url.PathEscape(ref) }

func shownTable(v *admin.PolicyShown) (heading []string, rows [][]string) {
	rows = [][]string{
		{"policy", v.Policy + "@" + v.Release},
		{"kind", v.Kind},
		{"digest", v.Digest},
		{"bytes", strconv.FormatInt(v.Bytes, 10)},
		{"signer", orDash(v.Signer)},
		{"uploaded", time.UnixMilli(v.UploadedMS).UTC().Format(time.RFC3339)},
		{"bound", orDash(strings.Join(v.Bound, ", "))},
		{"quarantined", orDash(v.Quarantined)},
		{"state keys", strconv.Itoa(v.StateKeys)},
		{"manifest", string(v.Manifest)},
	}
	return []string{"WHAT", "VALUE"}, rows
}

// saveModule writes a version's bytes into a new file.
func (a *app) saveModule(c *cobra.Command, client *adminClient, v *admin.PolicyShown, path string) error {
	resp, err := client.stream(c.Context(), http.MethodGet, policyPath(v.Digest)+"/module", http.NoBody)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	n, err := f.ReadFrom(resp.Body)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil && n != v.Bytes {
		err = fmt.Errorf("%d of %d bytes came", n, v.Bytes)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "%s@%s: %d bytes in %s\n", v.Policy, v.Release, n, path)
	return nil
}

func (a *app) policyDelete() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "delete POLICY",
		Short: "Delete a version that is bound nowhere",
		Long: `Delete a version, named by name@version, by name for the newest, or by digits of
its digest. One that is active, canary or shadow stays: bind another first. With a
policy's last version goes its replicated state.`,
		Example: "  yardmaster policy delete least-loaded@1.0.0",
		Args:    operand("POLICY"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var left admin.PolicyList
			if err := client.call(c.Context(), http.MethodDelete, policyPath(args[0]), nil, &left); err != nil {
				return err
			}
			return a.printPolicies(&out, &left)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}
