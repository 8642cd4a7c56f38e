package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/quorum"
)

func (a *app) benchRaft() *cobra.Command {
	var out output
	var opts quorum.Options
	c := &cobra.Command{
		Use:   "raft",
		Short: "Measure a cluster of three planners: commits, failover, handover, KV events",
		Long: `Start three planners as processes of this program on loopback, join them as a
gateway would, and measure what its writes see.

commit     a register of 100 bytes, one in flight, at rest; with --etcd in turns
           with three etcd processes, in clear text and under TLS; ours is
           always under mutual TLS
transfer   leadership is handed over under load: the longest a write waits
failover   the leader is killed (SIGKILL) under load: the time until a write that
           begins then succeeds. No acknowledged write may be lost
events     with --event-seconds, KV events of many workers are replicated: commit
           times, processor time of the planners, and whether the nodes' indexes
           are equal

The nodes' files are on the disk of --dir.`,
		Example: `  yardmaster bench raft -o json
  yardmaster bench raft --trials 3 --commits 500
  yardmaster bench raft --event-seconds 60 --dir /var/lib --etcd /usr/local/bin/etcd`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			program, err := os.Executable()
			if err != nil {
				return err
			}
			opts.Program = program
			r, err := quorum.Run(ctx, opts, func(what string) { _, _ = fmt.Fprintln(a.err, what) })
			if err != nil {
				return interruptedOr(ctx, err)
			}
			return out.print(a.out, r, []string{"FIGURE", "VALUE"}, raftRows(&r))
		},
	}
	c.Flags().IntVar(&opts.Trials, "trials", 20, "leaders that are killed, and handovers")
	c.Flags().IntVar(&opts.Commits, "commits", 2000, "commits, one after the other")
	c.Flags().StringVar(&opts.Dir, "dir", "", "folder on the disk to measure; default: the system's for temporary files")
	c.Flags().StringVar(&opts.Etcd, "etcd", "", "program of etcd, to be measured beside")
	c.Flags().IntVar(&opts.EventSeconds, "event-seconds", 0, "how long KV events are replicated; 0 leaves them out")
	c.Flags().IntVar(&opts.Workers, "workers", 1000, "workers that have events")
	c.Flags().IntVar(&opts.EventsPerS, "worker-events", 150, "events of a worker in a second")
	out.flag(c)
	return c
}

func raftRows(r *quorum.Result) [][]string {
	rows := [][]string{
		{"leader killed to first write, p50", milliseconds(r.FailoverP50MS)},
		{"leader killed to first write, longest", milliseconds(r.FailoverMaxMS)},
		{"wait of a write during a handover, p50", milliseconds(r.TransferP50MS)},
		{"wait of a write during a handover, longest", milliseconds(r.TransferMaxMS)},
		{"commit of 100 bytes, one in flight, p50", milliseconds(r.CommitP50MS)},
		{"commit of 100 bytes, one in flight, p99", milliseconds(r.CommitP99MS)},
		{"acknowledged writes lost", strconv.Itoa(r.Lost)},
	}
	if r.EtcdP50MS > 0 {
		rows = append(rows, []string{"etcd's commit, p50", milliseconds(r.EtcdP50MS)}, []string{"commit over etcd's", fmt.Sprintf("%.2f", r.EtcdRatio)},
			[]string{"etcd's commit under TLS, p50", milliseconds(r.EtcdTLSP50MS)}, []string{"commit over that", fmt.Sprintf("%.2f", r.EtcdTLSRatio)})
	}
	if e := r.Events; e != nil {
		rows = append(rows,
			[]string{"KV events committed a second", fmt.Sprintf("%.0f", e.PerS)},
			[]string{"commit of a worker's frame, p50", milliseconds(e.CommitP50MS)},
			[]string{"commit of a worker's frame, p99", milliseconds(e.CommitP99MS)},
			[]string{"cores of three planners", fmt.Sprintf("%.2f", e.Cores)},
			[]string{"digests that differ between nodes", fmt.Sprintf("%d of %d", e.Unequal, e.Samples)},
		)
	}
	return rows
}
