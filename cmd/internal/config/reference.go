package config

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
)

//go:generate go test -run TestReferenceIsCurrent -rewrite

// WriteReference writes REFERENCE.md: every setting, from the table, and the
// parameters of the policies of the binary.
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
	b.WriteString(`## Parameters of the policies of the binary

They follow a policy's name in brackets, wherever a policy is named: ` + "`gateway.policy: sticky(hold=40 crowd=8)`, or\n`yardmaster policy promote \"sticky(hold=40)\"`" + ` for all nodes at once. Formulas are in the packages' documentation.

| Policy | Parameter | Default | From | To | Meaning |
|---|---|---|---|---|---|
`)
	describe(&b, route.Policies())
	describe(&b, admit.Policies())
	describe(&b, scale.Policies())
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// describe writes a row for each parameter of native policies.
func describe[P native.Policy](b *strings.Builder, policies []P) {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, policy := range policies {
		for _, p := range native.ParamsOf(policy) {
			fmt.Fprintf(b, "| `%s` | `%s` | %s | %s | %s | %s |\n", policy.Name(), p.Name, number(p.Default), number(p.Least), number(p.Most), p.Help)
		}
	}
}
