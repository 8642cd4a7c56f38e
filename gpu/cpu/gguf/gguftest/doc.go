// Package gguftest makes GGUF files for tests: a [Writer] for any content, and
// [TinyModel], a whole language model of a few hundred kilobytes with a
// byte-level tokenizer, so that tests of the entire system run in
// milliseconds without a download.
//
// Weights are random. Nothing here is used outside tests.
package gguftest
