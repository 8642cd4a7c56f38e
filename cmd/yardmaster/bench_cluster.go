package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/cluster"
)

func (a *app) benchCluster() *cobra.Command {
	var out output
	var opts cluster.Options
	var file string
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Measure what survives when planners and gateways die",
		Long: `Start three planners, gateways and workers with scripted engines as processes of
this program on loopback, be their client, and measure:

streams    streams run and new requests come through two gateways while the
           leader is killed (SIGKILL), then all planners for --outage. None may fail
prefix     a trace is replayed with one gateway and with four: the share of prompt
           tokens that workers had cached, within 0.02 of one another
restart    prompts with common beginnings: the cached share at once after a
           gateway, each kind of planner, and all of them were killed and started
           again, 0.99 of the warm one or more
herding    four gateways place bursts of 64 requests at once on eight equal
           workers: the busiest worker over the mean, 1.25 or less

The exit code is 1 when something is not as said. The whole takes some minutes;
other load on the machine shows in times and gaps.`,
		Example: `  yardmaster bench cluster -o json
  yardmaster bench cluster --part streams --outage 60s
  yardmaster bench cluster --part prefix --trace conversation_trace.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(c.Context())
			defer stop()
			if opts.Program, err = os.Executable(); err != nil {
				return err
			}
			if file != "" {
				if opts.Trace, err = readTrace(file); err != nil {
					return err
				}
			}
			r, err := cluster.Run(ctx, opts, func(what string) { _, _ = fmt.Fprintln(a.err, what) })
			if err != nil {
				return interruptedOr(ctx, err)
			}
			if err := out.print(a.out, r, []string{"FIGURE", "VALUE"}, clusterRows(&r)); err != nil {
				return err
			}
			return missed(r.Missed())
		},
	}
	c.Flags().StringSliceVar(&opts.Parts, "part", nil, "what to measure, of "+strings.Join(cluster.Parts(), ", ")+"; default all")
	c.Flags().StringVar(&opts.Dir, "dir", "", "folder for the nodes' files; default: the system's for temporary files")
	c.Flags().IntVar(&opts.Streams, "streams", 200, "streams that run at once")
	c.Flags().IntVar(&opts.StreamTokens, "stream-tokens", 500, "tokens of a stream, 100 ms apart")
	c.Flags().IntVar(&opts.RequestsPerS, "request-rate", 100, "new short requests a second beside the streams")
	c.Flags().DurationVar(&opts.Outage, "outage", 0, "time without any planner (default 30s)")
	c.Flags().StringVar(&file, "trace", "", "trace in Mooncake's format; default: a generated one with the same statistics")
	c.Flags().IntVar(&opts.Requests, "requests", 1000, "requests of the trace")
	c.Flags().Float64Var(&opts.Speed, "speed", 11, "how many times faster the trace is replayed")
	c.Flags().IntVar(&opts.Bursts, "bursts", 20, "bursts of 64 requests, of each kind")
	out.flag(c)
	return c
}

// missed is an error that names what is not as it must be.
func missed(bars []cluster.Bar) error {
	var what []string
	for _, b := range bars {
		what = append(what, fmt.Sprintf("%s is %.4g, not %s", b.What, b.Value, bound(&b)))
	}
	if what == nil {
		return nil
	}
	return &codedError{code: exitRuntime, err: fmt.Errorf("missed: %s", strings.Join(what, "; "))}
}

// bound is what a bar's value must be.
func bound(b *cluster.Bar) string {
	if b.Least {
		return fmt.Sprintf("%.4g or more", b.Bound)
	}
	return fmt.Sprintf("%.4g or less", b.Bound)
}

func clusterRows(r *cluster.Result) [][]string {
	var rows [][]string
	row := func(what, format string, values ...any) {
		rows = append(rows, []string{what, fmt.Sprintf(format, values...)})
	}
	if s := r.Streams; s != nil {
		row("streams that came whole, failed", "%d, %d", s.Whole, s.Failed)
		row("new requests answered, failed", "%d, %d", s.RequestsOK, s.RequestsFail)
		row("longest gap between two tokens", "%s", milliseconds(s.LongestGapMS))
		for _, p := range s.Phases {
			row("new requests, "+p.Name+": p50, p99, longest", "%s, %s, %s", milliseconds(p.P50MS), milliseconds(p.P99MS), milliseconds(p.MaxMS))
		}
		row("leader killed until another leads", "%s", milliseconds(s.FailoverMS))
		row("planners started again until they lead", "%s", milliseconds(s.ReturnMS))
		row("afterwards, until a new worker is known, a dead one", "%s, %s", milliseconds(s.NewWorkerMS), milliseconds(s.DeadWorkerMS))
	}
	if p := r.Prefix; p != nil {
		row("cached share of the trace, one gateway", "%.4f", p.One.CachedShare)
		row("cached share of the trace, four gateways", "%.4f", p.Four.CachedShare)
		row("cached share of the trace, one cache of the fleet's size", "%.4f", p.Oracle)
	}
	if s := r.Restart; s != nil {
		row("cached share of common beginnings: warm, at best, by chance", "%.4f, %.4f, %.4f", s.Warm, s.Best, s.Blind)
		for _, c := range s.Cases {
			row("killed: "+c.Killed, "%.4f of the warm share, ready after %s", c.OfWarm, milliseconds(c.ReadyMS))
		}
	}
	if h := r.Herding; h != nil {
		row("busiest worker over the mean: all, worst burst", "%.3f, %.3f", h.Distinct.All, h.Distinct.Worst)
		row("the same with one hot prefix", "%.3f, %.3f", h.Hot.All, h.Hot.Worst)
	}
	row("load of the machine, of its cores", "%.1f to %.1f, of %d", r.Machine.LoadBefore, r.Machine.LoadAfter, r.Machine.Cores)
	return rows
}
