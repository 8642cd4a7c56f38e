package main

import (
	"github.com/spf13/cobra"
)

func (a *app) policyCommand() *cobra.Command {
	c := noun("policy", "Write policies in Wasm, try them, and bind them while traffic flows",
		a.policyNew(), a.policyBuild(), a.policyTest(), a.policyTime(),
		a.policyPush(), a.policyList(), a.policyShow(), a.policyDelete(), a.policyKeygen(),
		a.policyShadow(), a.policyCanary(), a.policyPromote(), a.policyRollback(),
		a.policyPin(), a.policyUnpin(), a.policyClear(), a.policyExplain(), a.policySimulate(),
	)
	c.Long = `A policy decides which worker serves a request (router), whether one is served
(admission), how many workers a pool has (autoscaler), or learns from how requests
ended (observer). It is a module in WebAssembly, sandboxed and metered: at worst it
makes decisions worse, for the binary's own policies answer in its place.

Its life: new makes a project, build its module; test holds it to golden decisions,
bench times it and simulate replays a trace with it, all on your machine. Then push has
the planners check and keep it, shadow lets it decide without effect, canary gives it a
share of the sessions, promote all of them, and rollback undoes the last step. Every
node changes over at the same entry of the log.`
	c.Example = `  yardmaster policy new blue-router --lang go
  yardmaster policy build blue-router
  yardmaster policy test blue-router
  yardmaster policy push blue-router/policy.wasm --key team.key
  yardmaster policy shadow blue-router
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
