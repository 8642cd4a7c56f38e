// Package serve is the HTTP face of a worker that hosts the CPU engine: the
// OpenAI API, in front of package batch.
//
// It tokenises, submits, and turns tokens back into text, streamed or whole.
// What it answers is final: it neither retries nor chooses another worker, and
// it does no accounting of tenants; that is the gateway's. It speaks to one
// gateway it trusts: the headers in core/engine make a call one leg of a
// disaggregated request, whose KV pages package pd moves.
//
// A client that leaves, at any point, cancels its engine request at once. A
// stream that fails ends with an error event and a cut connection, never as if
// it were complete.
package serve
