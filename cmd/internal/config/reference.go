package config

import (
	"fmt"
	"io"
	"strings"
)

// WriteReference writes REFERENCE.md: every setting, from the table.
func WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Settings

A flag wins over the environment, that over the file, that over the default.
` + "`yardmaster config print --effective` shows each value and where it came from; `yardmaster config validate FILE`" + `
checks a file. Written by ` + "`make generate`" + `.

`)
	table := new(Config).table()
	for _, section := range sectionsOf(table) {
		fmt.Fprintf(&b, "## %s\n\n| Key | Type | Default | Environment | Meaning |\n|---|---|---|---|---|\n", section)
		for i := range table {
			s := &table[i]
			if in, _ := s.split(); in != section {
				continue
			}
			def := ""
			if s.def != "" {
				def = "`" + s.def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", s.key, strings.ReplaceAll(s.takes(), "|", ", "), def, s.env(), s.help)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}
