// Package kv is the paged KV cache of the CPU engine: the memory ([Pool]) and
// who holds which block of it ([Cache]).
//
// A block holds the keys and values of BlockTokens consecutive tokens for all
// layers. Its bytes for one layer are a page: K then V, each
// [kv head][token][head dim] row-major, so that a page moves to another worker
// in one write.
package kv
