package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// output is how a command prints what it found: -o table, json or yaml.
type output struct{ format string }

func (o *output) flag(c *cobra.Command) {
	c.Flags().VarP(o, "output", "o", "print as table, json or yaml")
	// The only error is a flag of that name missing.
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// String is the format, table unless another was chosen.
func (o *output) String() string {
	if o.format == "" {
		return "table"
	}
	return o.format
}

// Type is the flag's kind, as help prints it.
func (o *output) Type() string { return "format" }

// Set chooses a format.
func (o *output) Set(format string) error {
	switch format {
	case "table", "json", "yaml":
		o.format = format
		return nil
	default:
		return fmt.Errorf("%q is not one of table, json, yaml", format)
	}
}

// print writes value as JSON or YAML, or the rows under the heading. The YAML
// has the names of the JSON.
func (o *output) print(w io.Writer, value any, heading []string, rows [][]string) error {
	switch o.String() {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	case "yaml":
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	default:
		table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(table, strings.Join(heading, "\t"))
		for _, row := range rows {
			fmt.Fprintln(table, strings.Join(cells(row), "\t"))
		}
		return table.Flush()
	}
}

// cells are a row as a terminal may show it: others chose some of the names, and what is
// not printable in them would move, colour or hide what stands around.
func cells(row []string) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		if out[i] = cell; strings.ContainsFunc(cell, unprintable) || !utf8.ValidString(cell) {
			out[i] = strconv.Quote(cell)
		}
	}
	return out
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
