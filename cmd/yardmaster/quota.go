package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) quotaCommand() *cobra.Command {
	c := noun("quota", "Set how many tokens tenants may use", a.quotaList(), a.quotaSet(), a.quotaDrop())
	c.Long = `Set how many tokens a tenant may use in a minute, prompts and outputs together, at all
gateways of the cluster. A request beyond that gets status 429 and when to come back.
A tenant without a quota is not limited. Whose a request is, gateways learn by
gateway.tenant-keys or gateway.tenant-header.`
	c.Example = "  yardmaster quota set acme 200000\n  yardmaster quota list"
	return c
}

func (a *app) quotaList() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the tenants that have a quota",
		Long:    "List the tenants that have a quota. GRANTED is what gateways have taken of the newest\nminute that anybody asked for.",
		Example: "  yardmaster quota list -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.quotas(c, address, &out, http.MethodGet, "/admin/quotas", nil)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) quotaSet() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "set TENANT TOKENS",
		Short:   "Limit a tenant to so many tokens a minute",
		Long:    "Limit a tenant to so many tokens a minute. 0 refuses all that it asks for; drop ends\nthe limit.",
		Example: "  yardmaster quota set acme 200000",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("the tenant and its tokens a minute are needed: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			tokens, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usage(fmt.Errorf("%q is not a number of tokens", args[1]))
			}
			if err := a.quotas(c, address, &out, http.MethodPut, quotaPath(args[0]), map[string]int64{"tokens_per_minute": tokens}); err != nil {
				return err
			}
			if tokens == 0 {
				fmt.Fprintf(a.err, "yardmaster: warning: with a quota of 0 every request of %s is refused; `yardmaster quota drop %s` ends the limit\n", args[0], args[0])
			}
			return nil
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) quotaDrop() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "drop TENANT",
		Short:   "End a tenant's quota: it is not limited any more",
		Example: "  yardmaster quota drop acme",
		Args:    operand("TENANT"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var before admin.QuotaList
			if err := client.call(c.Context(), http.MethodGet, "/admin/quotas", nil, &before); err != nil {
				return err
			}
			if err := a.quotas(c, address, &out, http.MethodDelete, quotaPath(args[0]), nil); err != nil {
				return err
			}
			if !slices.ContainsFunc(before.Quotas, func(q admin.Quota) bool { return q.Tenant == args[0] }) {
				fmt.Fprintf(a.err, "yardmaster: warning: %s had no quota, as far as this node knew\n", args[0])
			}
			return nil
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func quotaPath(tenant string) string { return "/admin/quotas/" + url.PathEscape(tenant) }

// quotas asks and prints all quotas.
func (a *app) quotas(c *cobra.Command, address string, out *output, method, path string, in any) error {
	client, err := a.adminAt(address)
	if err != nil {
		return err
	}
	var found admin.QuotaList
	if err := client.call(c.Context(), method, path, in, &found); err != nil {
		return err
	}
	var rows [][]string
	for _, q := range found.Quotas {
		rows = append(rows, []string{q.Tenant, strconv.FormatInt(q.TokensPerMinute, 10), strconv.FormatInt(q.Granted, 10)})
	}
	return out.print(a.out, found, []string{"TENANT", "TOKENS A MINUTE", "GRANTED"}, rows)
}
