package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) clusterCommand() *cobra.Command {
	c := noun("cluster", "Look at the cluster of planners and gateways, and change it",
		a.clusterStatus(), a.clusterPeers(), a.clusterHealth(),
		a.clusterAdd(), a.clusterRemove(), a.clusterTransfer(), a.clusterStepDown(),
		a.clusterAutopilot(), a.clusterSnapshot(), a.clusterDebug(), a.clusterRecover(), a.clusterToken())
	c.Long = `Look at the cluster of planners and gateways, and change it. All but recover, token
and snapshot inspect ask a node's admin API, which --admin names.

cmd/yardmaster/OPERATING.md in the source tells how a cluster is started, watched,
upgraded and repaired, by task and by symptom.`
	return c
}

func (a *app) clusterStatus() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "status",
		Short: "Show every member, where it stands, and what is wrong",
		Long: `Ask a node, which asks every member, and show where each stands.

  ROLE     what it is started as
  VOTES    whether it counts for a majority; a planner does once it has caught up
  STATE    leader, follower, candidate or shutdown; who does not vote follows
  READY    whether its view of the fleet and of the prefix index is recovered
  APPLIED  entries applied in group core and in group prefix
  LAG      entries behind the leader in each
  CONTACT  since it last heard of the leader

A member that does not answer is shown with the reason; the others' figures are
their own.`,
		Example: "  yardmaster cluster status\n  yardmaster cluster status --admin 127.0.0.1:8191 -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var s admin.ClusterStatus
			if err := client.call(c.Context(), http.MethodGet, "/admin/cluster/status", nil, &s); err != nil {
				return err
			}
			if out.String() == "table" {
				fmt.Fprintln(a.out, summary(&s))
			}
			heading, rows := memberTable(s.Members)
			return out.print(a.out, s, heading, rows)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

// summary is the cluster in a few lines.
func summary(s *admin.ClusterStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s, asked %s\n", orDash(s.ClusterID), s.Node)
	switch {
	case s.Leader == "":
		if s.ClusterID != "" { // else the problems say what it waits for
			b.WriteString("no leader: requests are served, changes wait\n")
		}
	case s.PrefixLeader == s.Leader:
		fmt.Fprintf(&b, "leader %s, feature level %d\n", s.Leader, s.FeatureLevel)
	default:
		fmt.Fprintf(&b, "leader %s, of the prefix group %s, feature level %d\n", s.Leader, orDash(s.PrefixLeader), s.FeatureLevel)
	}
	if s.Healthy {
		fmt.Fprintf(&b, "healthy; survives the loss of %s\n", plural(s.Tolerates, "more planner", "more planners"))
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "! %s\n", p)
	}
	for _, h := range s.Hints {
		fmt.Fprintf(&b, "  %s\n", h)
	}
	return b.String()
}

func memberTable(members []admin.Member) (heading []string, rows [][]string) {
	heading = []string{"NODE", "ROLE", "VOTES", "STATE", "READY", "APPLIED", "LAG", "CONTACT", "VERSION", "ADDRESS", "PROBLEMS"}
	for i := range members {
		m := &members[i]
		row := []string{m.ID, role(m.Planner || m.Voter), yesNo(m.Voter), "?", "?", "?", "?", "?", orDash(m.Version), m.Address, orDash(strings.Join(m.Problems, "; "))}
		if m.Reached {
			row[3], row[4] = stateOf(m.Core), yesNo(m.NotReady == "")
			row[5] = figures(m, func(g *admin.GroupStatus) uint64 { return g.Applied })
			row[6] = figures(m, func(g *admin.GroupStatus) uint64 { return g.Lag })
			row[7] = (time.Duration(m.LastContactMS) * time.Millisecond).String()
		}
		rows = append(rows, row)
	}
	return heading, rows
}

// figures is one figure of both groups, core first.
func figures(m *admin.Member, of func(*admin.GroupStatus) uint64) string {
	var parts []string
	for _, g := range []*admin.GroupStatus{m.Core, m.Prefix} {
		part := "-"
		if g != nil {
			part = strconv.FormatUint(of(g), 10)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "/")
}

func stateOf(g *admin.GroupStatus) string {
	if g == nil {
		return "-"
	}
	return g.State
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func role(voter bool) string {
	if voter {
		return "planner"
	}
	return "gateway"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func (a *app) clusterPeers() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "peers",
		Short:   "List the members as a node's own configuration names them",
		Long:    "List the members as the asked node knows them, from its memory: nobody else is\nasked, so that it works when nothing else does.",
		Example: "  yardmaster cluster peers\n  yardmaster cluster peers -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var p admin.Peers
			if err := client.call(c.Context(), http.MethodGet, "/admin/cluster/peers", nil, &p); err != nil {
				return err
			}
			return a.printPeers(&out, &p)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) printPeers(out *output, p *admin.Peers) error {
	var rows [][]string
	for _, one := range p.Peers {
		rows = append(rows, []string{one.ID, role(one.Voter), one.Address})
	}
	return out.print(a.out, p, []string{"NODE", "ROLE", "ADDRESS"}, rows)
}

func (a *app) clusterHealth() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "health",
		Short: "Say whether the cluster is healthy; exit 1 when it is not",
		Long: `Say whether the cluster is healthy, and of each member why it is not. The exit
code is 1 when it is not, for scripts: wait for 0 between two steps of an upgrade.`,
		Example: "  yardmaster cluster health\n  until yardmaster cluster health -o json; do sleep 1; done",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var h admin.Health
			if err := client.call(c.Context(), http.MethodGet, "/admin/cluster/health", nil, &h, http.StatusServiceUnavailable); err != nil {
				return err
			}
			var rows [][]string
			for _, m := range h.Members {
				rows = append(rows, []string{m.ID, role(m.Voter), strconv.FormatBool(m.Healthy), orDash(strings.Join(m.Problems, "; "))})
			}
			if err := out.print(a.out, h, []string{"NODE", "ROLE", "HEALTHY", "PROBLEMS"}, rows); err != nil {
				return err
			}
			if !h.Healthy {
				return errUnhealthy(&h)
			}
			return nil
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func errUnhealthy(h *admin.Health) error {
	if len(h.Problems) == 0 {
		return errors.New("the cluster is not healthy")
	}
	return errors.New("the cluster is not healthy: " + strings.Join(h.Problems, "; "))
}

func peerPath(id string) string { return "/admin/cluster/peers/" + url.PathEscape(id) }
