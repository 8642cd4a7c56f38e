// Package bind writes a policy's bindings: from the manifest, the source file by which
// a guest in C, Go, Rust or AssemblyScript reads its columns and parameters by name.
//
// The manifest alone says which columns a policy reads, in which order, with which
// types. Bindings are generated so that no author writes that down a second time: a
// column in another place would be another column's numbers, and nothing would notice.
//
// [Generate] is the first step of `yardmaster policy build`, which writes stale bindings
// anew. The languages' own parts (blocks, host functions) are the SDKs in plugins-sdk.
// Nothing is compiled here.
package bind
