// Package builtin holds the policies in Wasm that come with the program, as bytes.
//
// They decide what native policies decide, and are there to begin from: a policy that
// can be shown, shadowed, canaried and taken as a model, on any cluster, before anybody
// has built one. They travel the same way as an upload does.
package builtin
