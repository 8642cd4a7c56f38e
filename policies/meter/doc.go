// Package meter bounds what a policy may compute, by writing the bound into it.
//
// [Rewrite] takes a module that package module has accepted and returns one that
// counts. A mutable global, beyond those that the guest can name and exported as
// [Export], holds the fuel that is left; the host sets it before each call. At
// every function's entry, every loop's header and every operation on many bytes
// the module takes off what follows at most costs, and stops with the instruction
// unreachable once the fuel is below zero. Until then it behaves as before, and
// how much it uses is a function of its input alone: the same on every machine,
// in the interpreter and the compiler.
//
// The rewriter also lowers the memory's maximum to what is granted and drops
// custom sections. The same module and options give the same bytes.
//
// It refuses only what grows beyond bounds by being metered. It runs nothing, and
// calls of the host are for the host to charge. What is charged and why is in
// DESIGN.md.
package meter
