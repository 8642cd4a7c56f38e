package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench"
	"github.com/yardmaster/yardmaster/cmd/internal/hugemem"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/sim/trace"
)

func (a *app) benchIndex() *cobra.Command {
	var out output
	var file string
	var opts bench.IndexOptions
	c := &cobra.Command{
		Use:   "index",
		Short: "Measure the prefix index: updates, lookups, memory",
		Long: `Measure the prefix index in this process. A trace is replayed over model caches
of the workers, lookups and updates interleaved on one core, everything applied
before the clock stops; then an index of 1 M blocks held by eight workers each,
and one that is given ten million chains that never come again.`,
		Example: `  yardmaster bench index
  yardmaster bench index --trace conversation_trace.jsonl -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file != "" {
				rows, err := readTrace(file)
				if err != nil {
					return err
				}
				opts.Trace = rows
			}
			var source hugemem.Source
			opts.Memory = func(x *prefix.Index) prefix.Memory { return hugemem.New(&source, x) }
			r, err := bench.Index(opts, func(stage string) { _, _ = fmt.Fprintln(a.err, stage) })
			if err != nil {
				return err
			}
			return out.print(a.out, r, []string{"FIGURE", "VALUE"}, [][]string{
				{"block operations a second, one core", fmt.Sprintf("%.0f", r.BlockOpsPerS)},
				{"lookup of a trace's prompt, p50", fmt.Sprintf("%.2f us", r.LookupP50us)},
				{"lookup of a trace's prompt, p99", fmt.Sprintf("%.2f us", r.LookupP99us)},
				{"bytes a block, up to 8 holders", fmt.Sprintf("%.1f", r.BytesPerBlock)},
				{"lookup of 8,192 of 1 M blocks, p50", fmt.Sprintf("%.0f us", r.LongLookupP50)},
				{"two readers over one, beside a writer", fmt.Sprintf("%.2f; per processor time %.2f", r.ReadersSpeedup, r.ReadersCPU)},
				{"resident memory at a budget of 128 MiB", fmt.Sprintf("%.0f MiB", r.BudgetRSSMiB)},
				{"hashing, million tokens a second", fmt.Sprintf("%.0f", r.HashMTokS)},
			})
		},
	}
	c.Flags().StringVar(&file, "trace", "", "trace in Mooncake's format; default: a generated one with the same statistics")
	c.Flags().IntVar(&opts.Workers, "workers", 128, "workers the trace is spread over")
	c.Flags().IntVar(&opts.Copies, "copies", 4, "copies of the trace, each with blocks of its own")
	out.flag(c)
	return c
}

func readTrace(file string) ([]trace.Request, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	rows, err := trace.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return rows, nil
}
