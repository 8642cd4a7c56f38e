package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

// bind puts the settings of sections on a command, with completion for those
// that choose among words.
func bind(c *cobra.Command, uses ...config.Use) *config.Flags {
	flags := config.Bind(c.Flags(), uses...)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		words := strings.Split(f.Value.Type(), "|")
		switch f.Value.Type() {
		case "bool":
			words = []string{"true", "false"}
		case "policy":
			words = config.Policies()
		}
		if len(words) > 1 {
			// The only error is a flag of that name missing.
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	return flags
}
