// Package ym is what policies in Go are written with: the request blocks, the host's
// functions, and the buffers of contract ym/1.
//
// A policy is a package main with a manifest.json, a file policy_gen.go that
// `yardmaster policy build` makes of it, and one function, by its kind:
//
//	func score(r *ym.RouterRequest, w *table, p *params) bool     // router
//	func admit(r *ym.AdmissionRequest, p *params) ym.Verdict      // admission
//	func tick(r *ym.PoolsRequest, s *table, p *params) bool       // autoscaler
//	func observe(r *ym.OutcomesRequest, o *table, p *params) bool // observer
//
// False is "no opinion": the host's fallback decides. Unknown is not zero: a float32
// that is not known is NaN ([Known]), a uint32 [Unknown].
//
// It is built by the plain toolchain, as a reactor:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o policy.wasm .
//
// and gets its manifest by `yardmaster policy build`, since Go's linker writes no
// custom sections. On any other platform the same package compiles too, with host
// functions that do nothing, so that a policy's function can be tested by go test.
//
// What a policy allocates in a call, it pays for: the budget covers the garbage
// collector. The SDK itself allocates only while it starts.
//
// Go's compiler sends each turn of a loop through a switch over the whole function, and
// fuel is counted by what a turn passes through. A loop over rows therefore belongs in
// a function of its own, not inlined, without calls, and with few branches: with four
// columns 350 units and 12.5 ns a row in place of 1,500 units. Bound it by
// min(n, ym.Rows), and no index is checked. The builtin max of floats is a call;
// [NotNegative] is none.
//
// Where that is not quick enough: read each column once before the loop, so that it is
// not checked for nil at each turn, have no branch in it, and take four rows a turn,
// by a function of a row that Go inlines, while i < n && i < ym.Rows-3: columns have
// room for the up to three rows behind n, and nobody reads what is scored there. That
// is 200 units and 6.8 ns a row in the example kv-cost.
package ym
