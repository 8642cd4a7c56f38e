// Package templates makes projects of policies: a manifest, a source that decides
// something, golden decisions, a build script that uses nothing but the language's own
// toolchain, and a copy of the SDK, so that a project builds where nothing can be
// downloaded.
//
// It compiles nothing and reads no manifest; `yardmaster policy build` and `test` do.
package templates
