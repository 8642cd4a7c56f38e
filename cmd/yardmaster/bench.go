package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/bench"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/model"
)

func (a *app) benchCommand() *cobra.Command {
	return noun("bench", "Measure this machine", a.benchEngine())
}

type engineBench struct {
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	Kernels string `json:"kernels"`
	bench.EngineResult
}

func (a *app) benchEngine() *cobra.Command {
	var out output
	var name, kernels string
	var threads int
	var opts bench.EngineOptions
	c := &cobra.Command{
		Use:   "engine",
		Short: "Measure the CPU engine: prefill, decode, and eight streams at once",
		Long: `Measure the CPU engine without HTTP: prompt tokens a second of one prompt,
generated tokens a second of one stream and of eight together. Medians; prompts
are random and never repeated.`,
		Example: "  yardmaster bench engine --model smollm2 --threads 1 -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			m, err := assemble.LoadModel(name, model.Options{Threads: threads, Kernels: kernels})
			if err != nil {
				return err
			}
			result := engineBench{Model: m.Name, Threads: m.Threads(), Kernels: m.Kernels()}
			result.EngineResult, err = measureEngine(ctx, m, opts)
			if err = errors.Join(err, m.Close()); err != nil {
				return interruptedOr(ctx, err)
			}
			return out.print(a.out, result, []string{"FIGURE", "TOKENS/S"}, [][]string{
				{"prefill_tok_s", tokensPerSecond(result.PrefillTokS)},
				{"decode_tok_s", tokensPerSecond(result.DecodeTokS)},
				{"decode_tok_s_batch8", tokensPerSecond(result.DecodeTokSBatch8)},
			})
		},
	}
	c.Flags().StringVar(&name, "model", "smollm2", "model: a name of `yardmaster model list`, or the path of a .gguf file")
	c.Flags().IntVar(&threads, "threads", 0, "threads; 0 is one a core")
	c.Flags().StringVar(&kernels, "kernels", "", "loops to use: generic, avx2, avx512; empty is the best this machine has")
	c.Flags().IntVar(&opts.Prompt, "prompt", 512, "tokens of the prompt")
	c.Flags().IntVar(&opts.Output, "output-tokens", 128, "tokens to generate")
	c.Flags().IntVar(&opts.Runs, "runs", 5, "runs of each; the median counts")
	out.flag(c)
	return c
}

func measureEngine(ctx context.Context, m *assemble.Model, opts bench.EngineOptions) (bench.EngineResult, error) {
	engine, err := batch.New(m.Model, bench.BatchOptions(m.Config().Context))
	if err != nil {
		return bench.EngineResult{}, err
	}
	result, err := bench.Engine(ctx, engine, m.Vocab(), opts)
	return result, errors.Join(err, engine.Close(ctx))
}

func tokensPerSecond(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
