package main

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) workerList() *cobra.Command {
	var address string
	var out output
	c := &cobra.Command{
		Use:   "list",
		Short: "List the workers that are registered, as a planner or gateway knows them",
		Long: `List the workers that are registered, as the asked planner or gateway knows them.

  EPOCH      names this incarnation; a restart gets another
  STATE      ready, or draining: nothing new is placed there
  HEARD      since the leader last heard of it; its lease ends with planner.lease-ttl
  IN FLIGHT  requests that gateways have with it; planners without one do not know
  PREFIX     exact: all that it holds is known by its KV events; degraded: some were
             lost, and it is asked anew; a dash: its engine publishes none
  BLOCKS     KV blocks that it says it holds`,
		Example: "  yardmaster worker list\n  yardmaster worker list --admin 127.0.0.1:8191 -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			var found admin.Workers
			if err := client.call(c.Context(), http.MethodGet, "/admin/workers", nil, &found); err != nil {
				return err
			}
			heading, rows := workerTable(found.Workers)
			return out.print(a.out, found, heading, rows)
		},
	}
	adminFlag(c, &address)
	out.flag(c)
	return c
}

func workerTable(workers []admin.Worker) (heading []string, rows [][]string) {
	heading = []string{"WORKER", "EPOCH", "ROLE", "ENGINE", "MODELS", "STATE", "HEARD", "IN FLIGHT", "PREFIX", "BLOCKS", "URL"}
	for i := range workers {
		w := &workers[i]
		state, heard := "ready", "-"
		if w.Draining {
			state = "draining"
		}
		if w.HeardMS != nil {
			heard = (time.Duration(*w.HeardMS) * time.Millisecond).String()
		}
		rows = append(rows, []string{
			w.ID, strconv.FormatUint(w.Epoch, 10), w.Role, w.Engine, strings.Join(w.Models, ","), state, heard,
			count(w.InFlight), orDash(w.Prefix), count(w.Blocks), w.URL,
		})
	}
	return heading, rows
}

// count is a number in a table; a dash is unknown.
func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}
