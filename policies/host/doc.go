// Package host runs policies: it turns a module into a pool of instances and calls
// them with columns.
//
// A [Host] holds the process's one wazero runtime and the functions that guests
// import. [Host.Load] decodes, checks, meters and compiles a module and makes its
// instances; the result is a [Policy]. [Policy.Take] lends an [Instance] or says at
// once that all are busy: nothing waits for one, since the native fallback is always
// there. The caller writes columns and the request block straight into the guest's
// memory, calls, reads the answer where the guest wrote it, and gives the instance
// back. None of that allocates.
//
// [Router] is a policy of kind router as core/route knows it: it fills the columns
// that the manifest lists, and when the guest has no answer the native fallback has
// one in the same call.
//
// An instance that trapped, or ran out of fuel, is closed and replaced beside the
// traffic, for its memory may be torn. [Policy.Close] waits until the instances that
// are lent have come back.
//
// Load compiles in this process and trusts that package vet's child has compiled the
// same bytes before, in bounded time. What becomes of faults (quarantine, the last
// good version), which version is bound, and what state is replicated is not decided
// here.
package host
