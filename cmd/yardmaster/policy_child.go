package main

import (
	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/policies/vet"
)

// policyChildCommand is the process in which uploads are compiled and tried. It is
// for this program alone to start.
func (a *app) policyChildCommand() *cobra.Command {
	return &cobra.Command{
		Use:    vet.ChildCommand,
		Short:  "Try a policy that comes on stdin (started by other commands)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return vet.Child(a.in, a.out) },
	}
}
