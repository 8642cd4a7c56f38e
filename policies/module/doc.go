// Package module reads WebAssembly modules that strangers wrote.
//
// [Decode] takes the bytes of an upload and returns its parts, or the first
// reason to refuse it: an [Error] with the offset and the function at fault, in
// a sentence that its author can act on. It accepts core WebAssembly 2.0 (bulk
// memory, reference types, multiple values, sign extension, saturating
// conversion, SIMD) and validates every instruction's type, so what it returns
// is a valid module. Of these it refuses what could hurt the host or escape the
// meter: more than [Limits] allow, imports that were not offered, a start
// function, tables that grow. Threads, exceptions, tail calls, garbage
// collection, 64-bit and multiple memories, relaxed SIMD and components are
// refused by name.
//
// Memory and time are bounded by the size of the input, never by a number that
// the input claims. Nothing is compiled or run, and nothing is copied: a [Module]
// and its parts are views of the bytes given, which must not change.
//
// Package meter rewrites what this one has accepted; package abi says which
// imports and exports a policy has; wazero runs it.
package module
