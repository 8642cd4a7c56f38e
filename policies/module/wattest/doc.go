// Package wattest builds WebAssembly modules for tests, good ones and broken ones.
//
// [Module] collects sections, and [Code] assembles instructions from their names
// in the text format, one line for a body:
//
//	m := wattest.New()
//	add := m.Func("i32 i32 -> i32", "", "local.get 0 local.get 1 i32.add")
//	m.Export("add", module.KindFunc, add)
//	wasm := m.Bytes()
//
// Nothing is validated, so that tests can say anything; what cannot be encoded at
// all panics. It is no parser of the text format: there are no names and no folded
// expressions. [Random] makes valid modules by chance.
package wattest
