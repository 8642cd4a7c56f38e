package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
)

func (a *app) benchPolicy() *cobra.Command {
	var out output
	var module, built string
	var opts policy.Options
	c := &cobra.Command{
		Use:   "policy",
		Short: "Measure a routing decision made by a policy in Wasm",
		Long: `Measure whole routing decisions in this process: an instance is lent, columns go
in, fuel is set, the guest is called, scores come out, the instance goes back, the
lowest is picked. The policy is kv-cost, by vectors of four. Beside it the same formula
in Go: over columns, and over a slice of pointers with a function call per worker, as
routers usually have it. Medians; a policy that picks another worker than the native
one is an error.`,
		Example: `  yardmaster bench policy -o json
  yardmaster bench policy --candidates 256 --go-module kv-cost-go.wasm`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(c.Context())
			defer stop()
			if opts.Module, err = optionalModule(module); err != nil {
				return err
			}
			if opts.Go, err = optionalModule(built); err != nil {
				return err
			}
			r, err := policy.Run(ctx, opts)
			if err != nil {
				return interruptedOr(ctx, err)
			}
			var rows [][]string
			for _, n := range r.Counts {
				key := strconv.Itoa(n)
				rows = append(rows, []string{key, micros(r.WasmUS, key), micros(r.NativeUS, key), micros(r.UsualUS, key), micros(r.GoUS, key), strconv.FormatInt(r.Fuel[key], 10)})
			}
			return out.print(a.out, r, []string{"CANDIDATES", "WASM", "NATIVE", "USUAL GO", "WASM BY GO", "FUEL"}, rows)
		},
	}
	c.Flags().IntSliceVar(&opts.Counts, "candidates", nil, "numbers of candidates (default 16,256,1024,4096)")
	c.Flags().StringVar(&module, "module", "", "a .wasm file with the formula of kv-cost; default: the one built in")
	c.Flags().StringVar(&built, "go-module", "", "another one, built by Go")
	c.Flags().IntVar(&opts.Rounds, "rounds", 201, "rounds, of which the median counts")
	out.flag(c)
	return c
}

// optionalModule reads a file; no name is no module.
func optionalModule(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	return b, nil
}

// micros is a figure in microseconds, or nothing.
func micros(of map[string]float64, key string) string {
	v, ok := of[key]
	if !ok {
		return ""
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + " us"
}
