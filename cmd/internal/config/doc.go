// Package config is the one place where settings are named, parsed and
// explained.
//
// settings.go is a table: a row gives a setting's key, its place in [Config],
// its default and its help. From it come the command-line flags, the
// YARDMASTER_* environment variables, the YAML file's grammar, `config print
// --effective` and REFERENCE.md. A flag wins over the environment, that over
// the file, that over the default.
//
// [Load] is strict and reports every problem at once, each with its place: an
// unknown key is an error with line, column and a suggestion. An environment
// variable that looks like a misspelt setting is only a warning, because
// container platforms invent YARDMASTER_* variables of their own.
//
// config opens no socket and starts nothing; what the values mean is decided
// in cmd/internal/assemble.
package config
