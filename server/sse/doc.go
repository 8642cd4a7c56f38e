// Package sse delivers an event stream to a client.
//
// Headers go out at once, every write is flushed before it returns, and nothing
// is compressed or held back. While the engine is silent a comment keeps
// intermediaries from closing the connection, only ever between whole events. A
// client that reads slowly blocks the writer, and through it the engine, with
// no buffer growing in between; one that stops reading is cut off in the end.
// A stream that fails says so in its last event and is then cut, so that no
// client takes it for complete.
//
// sse does not look into events: core/dispatch hands it whole ones.
package sse
