// Package tidy holds the house rules that no linter knows, as tests: which
// room may import which, what stands at the top level, that every package says
// what it is, that no machine's paths and no registry's address stand in the
// tree, that the commands the documents quote exist, and that the replicated
// state machines import nothing that could make two nodes differ.
//
// It has no code of its own, only tests.
package tidy
