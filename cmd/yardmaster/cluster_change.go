package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) clusterAdd() *cobra.Command {
	var address string
	var nonvoter bool
	var out output
	c := &cobra.Command{
		Use:   "add ID HOST:PORT",
		Short: "Make a node a member, or tell its new address",
		Long: `Make a node that runs a member, under its name and the address of its peer port, or
give a member a new address. A node that was started with --join comes in by
itself; this is for one that cannot reach the others first. A planner votes once it
has caught up; with --nonvoter it only follows until it is added again without.`,
		Example: "  yardmaster cluster add planner-3 10.0.0.4:8092\n  yardmaster cluster add planner-3 10.0.0.4:8092 --nonvoter",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("the node's name and address are needed: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var p admin.Peers
			peer := admin.Peer{ID: args[0], Address: args[1], Voter: !nonvoter}
			if err := client.call(c.Context(), http.MethodPost, "/admin/cluster/peers", peer, &p); err != nil {
				return err
			}
			return a.printPeers(&out, &p)
		},
	}
	c.Flags().BoolVar(&nonvoter, "nonvoter", false, "the node follows and does not vote")
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) clusterRemove() *cobra.Command {
	var address string
	var sure bool
	var out output
	c := &cobra.Command{
		Use:   "remove ID",
		Short: "Take a member out of the cluster",
		Long: `Take a member out of the cluster for good. Stop it first: a removed node that
still runs says so and ends. It comes back under the same name only with an empty
data folder. A gateway's name has six letters at its end that are new at each start:
yardmaster cluster peers shows it.

A planner that is well, and without which fewer failures are survived, is removed
only with --yes.

This needs a leader, that is a majority of the planners. When the majority is
lost for good, no member can be removed: see yardmaster cluster recover --help.`,
		Example: "  yardmaster cluster remove planner-2",
		Args:    operand("ID"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			if err := a.mayRemove(c.Context(), client, args[0], sure); err != nil {
				return err
			}
			var p admin.Peers
			err = client.call(c.Context(), http.MethodDelete, peerPath(args[0]), nil, &p)
			if fault, ok := errors.AsType[*adminError](err); ok && fault.code == "not_found" {
				return meant(c.Context(), client, args[0], err)
			}
			if err != nil {
				return err
			}
			return a.printPeers(&out, &p)
		},
	}
	c.Flags().BoolVar(&sure, "yes", false, "yes, also a planner that is well and needed")
	adminFlag(c, &address)
	out.flag(c)
	return c
}

// mayRemove refuses, unless that is wanted, to remove a planner that is well and
// needed, and warns of one that is only well.
func (a *app) mayRemove(ctx context.Context, client *adminClient, id string, sure bool) error {
	var s admin.ClusterStatus
	if err := client.call(ctx, http.MethodGet, "/admin/cluster/status", nil, &s); err != nil {
		return err
	}
	well, voters, target := 0, 0, false
	for i := range s.Members {
		m := &s.Members[i]
		if !m.Voter {
			continue
		}
		voters++
		if m.Healthy {
			well++
		}
		target = target || m.ID == id && m.Healthy
	}
	if !target || s.Leader == "" || voters < 2 {
		return nil // the leader says what else there is to say
	}
	left := max(well-1-((voters-1)/2+1), 0)
	switch {
	case left < s.Tolerates && !sure:
		return usage(fmt.Errorf("%s is well, and without it the cluster survives the loss of %s instead of %d: say --yes if that is wanted",
			id, plural(left, "planner", "planners"), s.Tolerates))
	case !sure:
		fmt.Fprintf(a.err, "yardmaster: warning: %s is well; it ends once it is removed, and comes back only with an empty data folder\n", id)
	}
	return nil
}

// meant adds to an unknown member the one whose name begins so, if there is one.
func meant(ctx context.Context, client *adminClient, id string, err error) error {
	var p admin.Peers
	if client.call(ctx, http.MethodGet, "/admin/cluster/peers", nil, &p) != nil {
		return err // which says enough
	}
	var near []string
	for _, one := range p.Peers {
		if strings.HasPrefix(one.ID, id) {
			near = append(near, one.ID)
		}
	}
	switch len(near) {
	case 0:
		return err
	case 1:
		return fmt.Errorf("%w; did you mean %q?", err, near[0])
	default:
		return fmt.Errorf("%w; there are %s", err, strings.Join(near, ", "))
	}
}

func (a *app) clusterTransfer() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "transfer-leader [ID]",
		Short: "Hand leadership to a planner",
		Long: `Hand leadership to a planner, or to the fittest when none is named, within
milliseconds. Do it before work on the leader; a planner that is stopped with
SIGTERM does it by itself.`,
		Example: "  yardmaster cluster transfer-leader planner-1\n  yardmaster cluster transfer-leader",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var to struct {
				ID string `json:"id"`
			}
			if len(args) == 1 {
				to.ID = args[0]
			}
			return a.lead(c, address, "/admin/cluster/transfer-leader", to)
		},
	}
	adminFlag(c, &address)
	return c
}

func (a *app) clusterStepDown() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:     "step-down",
		Short:   "Have the asked planner hand leadership to another",
		Long:    "Have the planner that is asked hand leadership to the fittest of the others, as\ntransfer-leader does from anywhere. One that does not lead says so, with the name of\nthe leader.",
		Example: "  yardmaster cluster step-down --admin 127.0.0.1:8091",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.lead(c, address, "/admin/cluster/step-down", nil)
		},
	}
	adminFlag(c, &address)
	return c
}

// lead asks for a change of leaders and prints who leads.
func (a *app) lead(c *cobra.Command, address, path string, in any) error {
	client, err := a.adminAt(address)
	if err != nil {
		return err
	}
	var led admin.Led
	if err := client.call(c.Context(), http.MethodPost, path, in, &led); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "%s leads\n", led.Leader)
	return nil
}

func (a *app) clusterAutopilot() *cobra.Command {
	return noun("autopilot", "How the leader judges members, and what it does by itself", a.autopilotGet(), a.autopilotSet())
}

func (a *app) autopilotGet() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:     "get",
		Short:   "Show the settings in force",
		Example: "  yardmaster cluster autopilot get -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var s admin.Autopilot
			if err := client.call(c.Context(), http.MethodGet, "/admin/cluster/autopilot", nil, &s); err != nil {
				return err
			}
			return a.printAutopilot(&out, &s)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) printAutopilot(out *output, s *admin.Autopilot) error {
	return out.print(a.out, s, []string{"SETTING", "VALUE"}, [][]string{
		{"cleanup-dead-voters", strconv.FormatBool(s.CleanupDeadVoters)},
		{"dead-after", (time.Duration(s.DeadAfterMS) * time.Millisecond).String()},
		{"min-voters", strconv.Itoa(s.MinVoters)},
		{"max-lag", strconv.FormatUint(s.MaxLag, 10)},
		{"stable-after", (time.Duration(s.StableAfterMS) * time.Millisecond).String()},
	})
}

func (a *app) autopilotSet() *cobra.Command {
	var address string
	var out output
	var cleanup bool
	var dead, stable time.Duration
	var voters int
	var lag uint64
	c := &cobra.Command{
		Use:   "set",
		Short: "Change settings; those that are not given stay",
		Long: `Change how the leader judges members. The settings are replicated.

--cleanup-dead-voters has the leader remove a planner that has been unreachable
for long while the others are a healthy majority. It is off unless set: a planner
that is only away would have to come back with an empty data folder.`,
		Example: "  yardmaster cluster autopilot set --max-lag 5000\n  yardmaster cluster autopilot set --cleanup-dead-voters=true --dead-after 6h",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			wanted := map[string]any{}
			for name, field := range map[string]struct {
				key   string
				value any
			}{
				"cleanup-dead-voters": {"cleanup_dead_voters", cleanup},
				"dead-after":          {"dead_after_ms", dead.Milliseconds()},
				"min-voters":          {"min_voters", voters},
				"max-lag":             {"max_lag", lag},
				"stable-after":        {"stable_after_ms", stable.Milliseconds()},
			} {
				if c.Flags().Changed(name) {
					wanted[field.key] = field.value
				}
			}
			if len(wanted) == 0 {
				return usage(errors.New("nothing to change: " + c.CommandPath() + " --help shows the settings"))
			}
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var s admin.Autopilot
			if err := client.call(c.Context(), http.MethodPut, "/admin/cluster/autopilot", wanted, &s); err != nil {
				return err
			}
			return a.printAutopilot(&out, &s)
		},
	}
	c.Flags().BoolVar(&cleanup, "cleanup-dead-voters", false, "remove planners that stay unreachable")
	c.Flags().DurationVar(&dead, "dead-after", 0, "silence after which a planner counts as dead for good")
	c.Flags().IntVar(&voters, "min-voters", 0, "planners that a cleanup leaves at least")
	c.Flags().Uint64Var(&lag, "max-lag", 0, "entries that a healthy member may be behind")
	c.Flags().DurationVar(&stable, "stable-after", 0, "time for which a member must be well to count as healthy")
	adminFlag(c, &address)
	out.flag(c)
	return c
}
