package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	return noun("config", "Look at settings and check files", a.configPrint(), a.configValidate(), a.configReference())
}

func (a *app) configPrint() *cobra.Command {
	var out output
	var effective bool
	c := &cobra.Command{
		Use:   "print",
		Short: "Print the settings and where each came from",
		Long: `Print the settings that a command started here would have. With --effective
every setting is printed; without it only those that differ from the default.`,
		Example: "  yardmaster config print --effective\n  yardmaster config print --config yardmaster.yaml -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			e, err := a.load(nil)
			if err != nil {
				return err
			}
			shown := make([]config.Setting, 0, len(e.Settings))
			var rows [][]string
			for _, s := range e.Settings {
				if effective || !e.Default(s.Key) {
					shown = append(shown, s)
					rows = append(rows, []string{s.Key, s.Value, s.Origin})
				}
			}
			if len(shown) == 0 && out.String() == "table" {
				fmt.Fprintln(a.err, "Every setting has its default; --effective shows them.")
				return nil
			}
			return out.print(a.out, shown, []string{"KEY", "VALUE", "ORIGIN"}, rows)
		},
	}
	c.Flags().BoolVar(&effective, "effective", false, "print every setting, defaults included")
	out.flag(c)
	return c
}

func (a *app) configValidate() *cobra.Command {
	return &cobra.Command{
		Use:     "validate FILE",
		Short:   "Check a configuration file",
		Long:    "Check a configuration file by loading it as a command would, without the environment.",
		Example: "  yardmaster config validate yardmaster.yaml",
		Args:    operand("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := config.Load(config.Sources{File: args[0]}); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s is valid\n", args[0])
			return nil
		},
	}
}

func (a *app) configReference() *cobra.Command {
	return &cobra.Command{
		Use:     "reference",
		Short:   "Print every setting with its meaning, as Markdown",
		Example: "  yardmaster config reference > settings.md",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return config.WriteReference(a.out) },
	}
}
