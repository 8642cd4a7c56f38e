package main

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/bench"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/model"
)

func (a *app) benchCommand() *cobra.Command {
	return noun("bench", "Measure this machine", a.benchIndex(), a.benchEngine(), a.benchPD(), a.benchGateway(), a.benchRaft(), a.benchCluster(), a.benchPolicy(), a.benchRollout())
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
	c.Flags().StringVar(&name, "model", "smollm2", "model: a name (yardmaster model list shows them), or the path of a .gguf file")
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

type pdBench struct {
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	bench.PDResult
}

func (a *app) benchPD() *cobra.Command {
	var out output
	var name string
	var threads int
	var opts bench.PDOptions
	c := &cobra.Command{
		Use:   "pd",
		Short: "Measure what disaggregation adds to the time to first token",
		Long: `Start a planner, a prefill and a decode worker, send the same kind of prompt
disaggregated and aggregated in turn, and take the time to first token apart:
compute, transfer not hidden behind it, and the rest, which is control. The first
line is the result: the worst over the prompt lengths, and not below zero, where
only noise is.`,
		Example: "  yardmaster bench pd -o json\n  yardmaster bench pd --prompt 512 --prompt 4096 --runs 3",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			result := pdBench{Model: name, Threads: threads}
			var err error
			if result.PDResult, err = a.measurePD(ctx, name, threads, opts); err != nil {
				return interruptedOr(ctx, err)
			}
			rows := [][]string{{
				"all", "", "", "", strconv.FormatFloat(100*result.ExposedTransferShare, 'f', 1, 64) + " % of prefill", "", "", milliseconds(result.ControlOverheadMS),
			}}
			for _, p := range result.Prompts {
				rows = append(rows, []string{
					strconv.Itoa(p.PromptTokens), milliseconds(p.TTFTAggregated), milliseconds(p.TTFTDisaggregated),
					milliseconds(p.Prefill), milliseconds(p.ExposedTransfer),
					milliseconds(p.ControlAggregated), milliseconds(p.ControlDisaggregated), milliseconds(max(p.ControlOverhead, 0)),
				})
			}
			return out.print(a.out, result,
				[]string{"PROMPT", "TTFT AGGREGATED", "TTFT DISAGGREGATED", "PREFILL", "EXPOSED TRANSFER", "CONTROL AGGREGATED", "CONTROL DISAGGREGATED", "CONTROL OVERHEAD"}, rows)
		},
	}
	c.Flags().StringVar(&name, "model", "smollm2", "model: a name (yardmaster model list shows them), or the path of a .gguf file")
	c.Flags().IntVar(&threads, "threads", 0, "threads of each worker; 0 is one a core")
	c.Flags().IntSliceVar(&opts.Prompts, "prompt", []int{512, 2048}, "tokens of the prompts")
	c.Flags().IntVar(&opts.Runs, "runs", 7, "runs of each; the median counts")
	out.flag(c)
	return c
}

// measurePD starts the system that bench.PD measures: dev's, with a second
// gateway that never disaggregates.
func (a *app) measurePD(ctx context.Context, name string, threads int, opts bench.PDOptions) (result bench.PDResult, err error) {
	e, err := a.load(nil)
	if err != nil {
		return result, err
	}
	c := e.Config
	c.Gateway.Listen, c.Dev.Threads, c.Dev.Disaggregate, c.Log.Level = "127.0.0.1:0", threads, "always", "error"
	c.Gateway.UnreadyTime = 0
	vocab, err := assemble.Vocab(name)
	if err != nil {
		return result, err
	}
	self, err := os.Executable()
	if err != nil {
		return result, err
	}
	p := a.process(c.Log)
	dev, err := assemble.StartDev(ctx, p, &c, assemble.DevOptions{
		Executable: self, Config: a.configFile(), Engine: "cpu", Model: name, Output: &lockedWriter{w: a.err},
	})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, drain(ctx, c.Gateway.DrainTimeout, dev.Close)) }()
	c.Gateway.Disaggregate = "never"
	second, err := assemble.StartGateway(ctx, assemble.NewProcess(a.version, p.Log), c.Gateway, dev.Planner)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, drain(ctx, c.Gateway.DrainTimeout, second.Close)) }()
	prefill, _ := dev.Worker("prefill-0")
	decode, _ := dev.Worker("decode-0")
	return bench.PD(ctx, bench.PDTarget{
		Disaggregated: dev.Gateway.URL(), Aggregated: second.URL(),
		Prefill: prefill.URL, Decode: decode.URL, Model: dev.Model(), Vocab: vocab,
	}, opts)
}

func milliseconds(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) + " ms" }

func tokensPerSecond(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
