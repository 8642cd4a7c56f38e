// Package batch is the CPU engine's scheduler: continuous batching over a paged
// KV cache.
package batch
