// Package abitest builds policies of ym/1 for tests, from text, without a toolchain.
//
// [Policy] describes one: its kind and columns, and the code of its calls in the
// instructions of package wattest. Buffers are laid out one after the other; the code
// names them by @0, @1 and so on (input columns), @out and @out1 (output columns),
// @request and @params, which stand for their addresses:
//
//	wasm := abitest.Policy{Columns: []string{"queued_tokens"}, Code: `i32.const @out i32.const @0 f32.load 0 f32.store 0 i32.const 0`}.Build()
//
// Nothing is validated, so that tests can say anything. [Corpus] are policies that
// mean harm or were built wrongly, with what becomes of each.
package abitest
