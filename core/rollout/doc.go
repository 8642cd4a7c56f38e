// Package rollout is the replicated life of policies: which versions there are,
// what is bound where, and what policies have written into the cluster's state.
//
// A [Version] is a module that was uploaded, named by its [Digest]. A [Binding]
// says for one kind of policy, and for one model or all, which [Stage] decides
// (active), which one is tried on a share of sessions (canary) and which one is
// only watched (shadow). A stage is one or several policies with their weights
// and parameters; a part without a digest is a policy built into the binary.
// A [Change] is one of the verbs that move a binding, and [Table.Quarantine]
// takes a version that fails out of all of them, back to the last good stage.
//
// A [Table] is an immutable value that replicated state carries: every change
// gives the next one, decided by the arguments alone, or an error that wraps one
// of this package's and says what to do. So a proposer can try a change on its
// own table for the sentence before it proposes it, and the entry decides.
//
// The package holds no bytes of modules (raftstore/blob), compiles and runs
// nothing (policies/live), and knows neither the names of native policies nor
// what is in parameters.
package rollout
