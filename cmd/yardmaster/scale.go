package main

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) scaleCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "scale",
		Short: "Look at the sizes of pools, and hold or set them",
		Long: `Look at the sizes of pools, and hold or set them. A pool is the workers of one role
that serve a model, written MODEL/ROLE. The leader sizes pools by scale.policy, or by
an autoscaler that was bound with yardmaster policy promote, within the settings of the
section scale, and commits a plan; actuators make the fleet so.`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(a.scaleShow(), a.scaleSet(), a.scaleHold("pause", "hold"), a.scaleHold("resume", "release"))
	return c
}

func (a *app) scaleShow() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "show",
		Short: "Show what each pool should have and has, and why",
		Long: `Show what each pool should have and has, and why. Of the planners the leader alone
knows the figures behind it: -o json has them all.

  DESIRED   workers that the plan in force wants
  READY     workers that take requests
  DRAINING  workers that finish what they have
  BOUNDS    fewest and most by scale.pool
  WANTED    what the policy wanted at the leader's last look; a dash is no opinion
  WHY       its reason, or the limit's`,
		Example: "  yardmaster scale show\n  yardmaster scale show --admin 127.0.0.1:8191 -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var s admin.ScaleStatus
			if err := client.call(c.Context(), http.MethodGet, "/admin/scale", nil, &s); err != nil {
				return err
			}
			return a.printScale(&out, &s)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) printScale(out *output, s *admin.ScaleStatus) error {
	if out.String() == "table" {
		fmt.Fprintln(a.out, scaleHead(s))
	}
	rows := make([][]string, 0, len(s.Pools))
	for i := range s.Pools {
		p := &s.Pools[i]
		most := ""
		if p.Most > 0 {
			most = strconv.FormatUint(uint64(p.Most), 10)
		}
		rows = append(rows, []string{
			p.Model + "/" + p.Role, size(p.Desired), size(&p.Ready), size(&p.Draining), fmt.Sprintf("%d-%s", p.Least, most), size(p.Wanted), orDash(p.Reason),
		})
	}
	return out.print(a.out, s, []string{"POOL", "DESIRED", "READY", "DRAINING", "BOUNDS", "WANTED", "WHY"}, rows)
}

// scaleHead is who decides, in a line.
func scaleHead(s *admin.ScaleStatus) string {
	parts := []string{"policy " + s.Policy, "actuator " + s.Actuator}
	if s.Budget > 0 {
		parts = append(parts, fmt.Sprintf("budget %d", s.Budget))
	}
	switch {
	case s.Plan == nil:
		parts = append(parts, "no plan yet")
	case s.Plan.Held:
		parts = append(parts, "plan held by an operator since "+s.Plan.At.Format(time.RFC3339))
	default:
		parts = append(parts, fmt.Sprintf("plan by %s, %s", s.Plan.Policy, s.Plan.At.Format(time.RFC3339)))
	}
	if s.Leader != nil && s.Leader.Fault != "" {
		parts = append(parts, "fault: "+s.Leader.Fault)
	}
	return strings.Join(parts, "; ")
}

func size(n *uint32) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*n), 10)
}

func (a *app) scaleSet() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "set MODEL/ROLE=N",
		Short: "Set the size of a pool by hand, and hold the plan",
		Long: `Set the size of a pool by hand, within the most of scale.pool and the budget. The plan
is then held: no policy changes it before yardmaster scale resume. Bounds and budget
themselves are settings.

The pool must be there: have workers, or be named in scale.pool. A size below the least
of scale.pool, 1 where nothing is said, holds until resume. A pool that is set to 0 and
not named in scale.pool leaves the plan when its workers are gone.`,
		Example: "  yardmaster scale set llama/decode=3",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			change, err := poolSize(args[0])
			if err != nil {
				return usage(err)
			}
			return a.changeScale(c, address, &out, &change)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

// poolSize reads MODEL/ROLE=N.
func poolSize(raw string) (admin.ScaleChange, error) {
	at := strings.LastIndexByte(raw, '=')
	slash := strings.LastIndexByte(raw[:max(at, 0)], '/')
	if slash <= 0 {
		return admin.ScaleChange{}, fmt.Errorf("%q is not a pool and its size such as llama/decode=3", raw)
	}
	n, err := strconv.ParseUint(raw[at+1:], 10, 32)
	if err != nil || n > scale.MaxReplicas {
		return admin.ScaleChange{}, fmt.Errorf("%q: the size is not a number from 0 to %d", raw, scale.MaxReplicas)
	}
	return admin.ScaleChange{Verb: "set", Model: raw[:slash], Role: raw[slash+1 : at], Desired: new(uint32(n))}, nil
}

func (a *app) scaleHold(name, verb string) *cobra.Command {
	var address string
	var out output
	short, long := "Hold the plan as it is", `Hold the plan as it is: no policy changes it before yardmaster scale resume, whoever
comes to lead. Workers that are lost are still replaced.`
	if verb == "release" {
		short, long = "Give the plan back to the policy", `Give the plan back to the policy, which goes on from the sizes that it has.`
	}
	c := &cobra.Command{
		Use: name, Short: short, Long: long, Example: "  yardmaster scale " + name,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.changeScale(c, address, &out, &admin.ScaleChange{Verb: verb})
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func (a *app) changeScale(c *cobra.Command, address string, out *output, change *admin.ScaleChange) error {
	client, err := a.adminAt(address)
	if err != nil {
		return err
	}
	var s admin.ScaleStatus
	err = client.call(c.Context(), http.MethodPost, "/admin/scale", change, &s)
	if fault, ok := errors.AsType[*adminError](err); ok && fault.code == "conflict" {
		return fmt.Errorf("%w: look at it with yardmaster scale show and try again", err)
	}
	if err != nil {
		return err
	}
	if text := belowLeast(&s, change); text != "" {
		fmt.Fprintln(a.err, text)
	}
	return a.printScale(out, &s)
}

// belowLeast is what to know of a size that is less than the policies may choose; empty
// of any other.
func belowLeast(s *admin.ScaleStatus, change *admin.ScaleChange) string {
	for i := range s.Pools {
		p := &s.Pools[i]
		if change.Desired != nil && p.Model == change.Model && p.Role == change.Role && *change.Desired < p.Least {
			text := fmt.Sprintf("warning: %s/%s is to have %d, fewer than its least of %d, until yardmaster scale resume; then it grows again", p.Model, p.Role, *change.Desired, p.Least)
			if *change.Desired == 0 {
				text += ", unless its workers are gone by then and scale.pool does not name it"
			}
			return text
		}
	}
	return ""
}
