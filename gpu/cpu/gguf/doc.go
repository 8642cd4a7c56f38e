// Package gguf reads GGUF model files, versions 2 and 3, little-endian.
//
// [Open] checks the whole header before it returns: every count, length,
// alignment and tensor range is compared with the size of the file, so that
// what a [File] hands out lies inside it. A damaged or hostile file is refused
// with an [Error] that names the byte offset. Nothing is allocated on the word
// of a count: memory is bounded by the bytes that are really there.
//
// Metadata stays in its encoded form until it is asked for; tensors stay in
// the file. [Dequantize] defines what the bytes of each tensor type mean.
//
// Types other than those listed with [Type] are refused by name. Nested
// arrays, big-endian files and version 1 are refused too. Package gguftest
// writes files; package model gives the tensors a meaning.
package gguf
