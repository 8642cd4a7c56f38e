// Package scripted is an OpenAI-compatible engine without a model. Every
// behaviour of it can be scripted, down to the byte and the connection; without
// a script it behaves like a well-made engine: answers are a function of the
// prompt, steps take the time a cost model says, prompts are found again in a
// real block cache.
//
// It is the peer of Yardmaster's tests, the live twin of the simulator, and an
// engine anyone can start to see how the platform or a client meets a fault.
// It records what it saw, aborts and their times included.
//
// It computes nothing: the KV it caches and moves is bookkeeping. The engine that
// computes is gpu/cpu. The script language is described in DESIGN.md.
package scripted
