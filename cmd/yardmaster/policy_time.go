package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
)

func (a *app) policyTime() *cobra.Command {
	var opts policy.TimesOptions
	var params map[string]string
	var out output
	c := &cobra.Command{
		Use:   "bench FILE",
		Short: "Time a policy's decisions on this machine, beside the binary's own policies",
		Long: `Time whole decisions of a built policy on made-up situations: an instance is lent,
columns go in, fuel is set, the guest is called, the answer comes out, the instance goes
back. Beside it the binary's own policies of that kind decide the same situations.

  ROWS      candidates of a router, pools of an autoscaler, outcomes of an observer
  FUEL      units that a decision used, against the budget in the manifest; a call that
            comes near it may have no answer on a larger fleet
  the rest  medians in microseconds

Where the policy has no answer its column says why in place of a time, and bench ends
with status 1: "fuel" in the manifest may be raised, up to the kind's bound.`,
		Example: `  yardmaster policy bench policy.wasm
  yardmaster policy bench policy.wasm --rows 64,512 -o json
  yardmaster policy bench policy.wasm --param hit_weight=2`,
		Args: operand("FILE"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			ctx, stop := interruptible(c.Context())
			defer stop()
			path, err := a.moduleOf(args[0])
			if err != nil {
				return err
			}
			if opts.Module, err = moduleAt(path); err != nil {
				return err
			}
			if opts.Params, err = numbersOf(params); err != nil {
				return usage(err)
			}
			t, err := policy.Measure(ctx, opts)
			if err != nil {
				return interruptedOr(ctx, fmt.Errorf("%s: %w", path, err))
			}
			return a.printTimes(t, &out)
		},
	}
	c.Flags().IntSliceVar(&opts.Counts, "rows", nil, "numbers of rows; default 16,256,1024,4096, of an autoscaler 1,16,64")
	c.Flags().StringToStringVar(&params, "param", nil, "parameters, as NAME=NUMBER")
	c.Flags().IntVar(&opts.Rounds, "rounds", 101, "rounds, of which the median counts")
	c.Flags().Uint64Var(&opts.Seed, "seed", 1, "of the made-up situations")
	out.flag(c)
	return c
}

// numbersOf reads parameters as they are typed.
func numbersOf(params map[string]string) (map[string]float64, error) {
	out := map[string]float64{}
	for name, text := range params {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("--param %s=%s is not a number", name, text)
		}
		out[name] = v
	}
	return out, nil
}

func (a *app) printTimes(t *policy.Times, out *output) error {
	names := slices.Sorted(maps.Keys(t.Native))
	heading := append([]string{"ROWS", t.Policy, "FUEL P50", "FUEL P99", "OF BUDGET"}, names...)
	var rows [][]string
	for _, n := range t.Counts {
		key := strconv.Itoa(n)
		row := append([]string{key}, guestTimes(t, key)...)
		for _, name := range names {
			row = append(row, micros(t.Native[name], key))
		}
		rows = append(rows, row)
	}
	if err := out.print(a.out, t, heading, rows); err != nil {
		return err
	}
	missed := uint64(0)
	for _, n := range t.Faults {
		missed += n
	}
	if missed == 0 {
		return nil
	}
	return &codedError{exitRuntime, fmt.Errorf("the policy had no answer to %d of %d decisions (%s): a fallback would make them",
		missed, t.Decisions, strings.Join(slices.Sorted(maps.Keys(t.Faults)), ", "))}
}

// guestTimes is a row's time and fuel. Where the guest has no answer the time is the
// fallback's, and none is shown.
func guestTimes(t *policy.Times, key string) []string {
	missed, missing := t.Unanswered[key]
	why := "no answer: " + strings.Join(missed.Why, ", ")
	if missed.Share >= 1 {
		return []string{why, "-", "-", "-"}
	}
	took := micros(t.US, key)
	if missing {
		took = fmt.Sprintf("%s to %s", why, percent(missed.Share))
	}
	return []string{
		took, strconv.FormatInt(t.FuelP50[key], 10), strconv.FormatInt(t.FuelP99[key], 10),
		percent(float64(t.FuelP99[key]*1000/max(t.Budget, 1)) / 1000),
	}
}
