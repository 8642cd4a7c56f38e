package main

import (
	"github.com/spf13/cobra"
)

func (a *app) policyCommand() *cobra.Command {
	c := noun("policy", "Write policies in Wasm, try them, and bind them while traffic flows",
		a.policyPush(), a.policyList(), a.policyShow(), a.policyDelete(), a.policyKeygen(),
		a.policyShadow(), a.policyCanary(), a.policyPromote(), a.policyRollback(),
		a.policyPin(), a.policyUnpin(), a.policyClear(), a.policyExplain(), a.policySimulate(),
	)
	c.Long = `A policy decides which worker serves a request (router), whether one is served
(admission), how many workers a pool has (autoscaler), or learns from how requests
ended (observer). It is a module in WebAssembly, sandboxed and metered: at worst it
makes decisions worse, for the binary's own policies answer in its place.

Its life: push has the planners check and keep it, shadow lets it decide without
effect, canary gives it a share of the sessions, promote all of them, and rollback
undoes the last step. Every node changes over at the same entry of the log.`
	c.Example = `  yardmaster policy push least-loaded.wasm --key team.key
  yardmaster policy shadow least-loaded
  yardmaster policy canary 5%
  yardmaster policy promote
  yardmaster policy rollback`
	return c
}

func (a *app) policyExplain() *cobra.Command {
	c := a.explainCommand()
	c.Short = "Say how a policy placed a request: the same as yardmaster explain"
	c.Example = "  yardmaster policy explain req-4f1c2a"
	return c
}
