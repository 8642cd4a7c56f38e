// Package project builds a policy from its folder: manifest.json, a source in one of
// the languages that have an SDK, and the SDK.
//
// [Build] brings the bindings up to date (package bind), runs the SDK's build script,
// which uses nothing but the language's own toolchain, appends the manifest, and holds
// the result against the contract (package abi). It is behind `yardmaster policy
// build`.
//
// The script runs with the rights of whoever calls: a project is its author's own
// code. What may be uploaded is judged from the module alone, by package vet.
package project
