// Package vet decides whether an uploaded policy may run, and says why not.
//
// [Pipeline.Check] takes the bytes of an upload and a detached signature through
// ten steps, cheapest first: size, digest, signature, structure (package module),
// contract (package abi), meter (package meter), then, in a process of its own that
// can be killed: compile, start, dry run, and comparison with the interpreter. It
// stops at the first step that fails. The [Report] has a verdict and a sentence for
// each.
//
// The child process ([Child]) has limits on memory, processor time and files, no
// environment, a group of its own, and ten seconds. What it compiles stays in a
// private directory from which package host loads it in milliseconds;
// [Pipeline.Warm] does only that, on nodes to which an accepted policy comes.
//
// A signature is Ed25519 over the SHA-256 of the upload's bytes as they came ([Sign],
// [Verify]). Bytes are all that is accepted: no path and no address.
//
// Nothing is stored, replicated or bound here: that is for raftstore/blob, core/rollout
// and package live.
package vet
