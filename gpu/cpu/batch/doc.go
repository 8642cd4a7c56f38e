// Package batch is the CPU engine's scheduler: continuous batching over a paged
// KV cache.
//
// An [Engine] takes requests, and in each step computes one token of every
// running sequence and as much of the waiting prompts as the token budget
// leaves room for. It shares cached prefixes between requests, puts the latest
// request back when blocks run out, and sends a request's tokens down its
// [Stream]. A reader that lags pauses its own request only.
//
// A request can be one leg of a disaggregated one: with an [Exporter] its KV is
// computed here and carried away, with an [Importer] it is brought here. Which
// worker does which, and how bytes travel, is not decided here.
//
// The model behind it is a [Runner]; package batchtest has one for tests. Text,
// tokenizers, stop strings and HTTP belong to the engine's server.
package batch
