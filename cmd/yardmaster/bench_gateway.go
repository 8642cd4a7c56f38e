package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/gate"
)

func (a *app) benchGateway() *cobra.Command {
	var out output
	var opts gate.Options
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Measure the gateway: processor time, latency, memory",
		Long: `Measure what the gateway costs, without other software: this program runs as a
gateway on a core of its own, between an engine and clients inside this process.

request and event   processor time of the gateway, by the kernel's account: whole
                    answers for 64 clients, streamed events of 32 streams 5 ms
                    apart (paced) and of 256 streams 2 ms apart (batched)
long prompt         processor time of a prompt of 48 KB with ten events
added               time to a whole answer and to a stream's first event, less
                    the time without gateway: the median of 400 pairs, one client
memory              resident memory: at rest, per stream of 1,000, what a reader
                    who stalls in a stream of 64 MB adds, what 50 bodies of 20 MB
                    at once add, and what remains of all after half a minute

Needs Linux.`,
		Example: "  yardmaster bench gateway -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			program, err := os.Executable()
			if err != nil {
				return err
			}
			opts.Program = program
			r, err := gate.Run(ctx, opts, func(what string) { _, _ = fmt.Fprintln(a.err, what) })
			if err != nil {
				return interruptedOr(ctx, err)
			}
			us := func(v float64) string { return fmt.Sprintf("%.1f us", v) }
			ms := func(v float64) string { return fmt.Sprintf("%.3f ms", v) }
			mib := func(v float64) string { return fmt.Sprintf("%.1f MiB", v) }
			return out.print(a.out, r, []string{"FIGURE", "VALUE"}, [][]string{
				{"CPU of a request, 64 clients", us(r.RequestUS)},
				{"CPU of an event, 32 streams, 5 ms apart", us(r.PacedUS)},
				{"CPU of an event, 256 streams, 2 ms apart", us(r.BatchedUS)},
				{"CPU of a 48 KB prompt, 10 events", ms(r.LongPromptMS)},
				{"added to a whole answer, p50", ms(r.AddedWholeMS)},
				{"added to a first event, p50", ms(r.AddedStreamMS)},
				{"memory of an open stream", fmt.Sprintf("%.1f KiB", r.StreamKiB)},
				{"memory at rest", mib(r.FreshMiB)},
				{"memory for a stalled reader of 64 MB", mib(r.StalledMiB)},
				{"memory for 50 bodies of 20 MB at once", fmt.Sprintf("%.1f MiB, %d served, %d refused", r.BodiesMiB, r.BodiesServed, r.BodiesRefused)},
				{"memory after all that", mib(r.AfterBurstMiB)},
			})
		},
	}
	c.Flags().IntVar(&opts.Seconds, "seconds", 3, "how long each rate is measured")
	out.flag(c)
	return c
}
