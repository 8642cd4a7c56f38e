// Package quota is the cluster's ledger of tenants' quotas: how many tokens a
// tenant may be granted in a window of time, and which holder, a gateway, has
// been granted how many of them.
//
// A [Ledger] is an immutable value that replicated state carries: every change
// gives the next one, decided by the arguments alone. Time is no more than the
// number of a window, which the proposer says: a newer one begins anew with
// nothing granted, an older one is refused.
//
// The tokens granted in a window never exceed the limit at the moment of the
// grant. Holders spend what they have been granted by themselves; the ledger
// does not see requests (core/admit does), and a tenant without a limit here is
// not limited.
package quota
