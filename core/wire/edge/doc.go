// Package edge is the gateway's light look at bodies that pass through it.
//
// A gateway forwards what clients and engines say byte for byte; it must know a
// few things in between. On the way in [Parse] reads the model, whether and how
// the answer streams, and how long the prompt is; it takes out the fields by
// which one part of the system commands another (they name hosts to dial), and
// it may splice in the one option that makes an engine report usage. On the way
// back a [Watch] reads usage, tokens and the end from a stream's events, and
// [Envelope] gives every engine's error the one shape clients understand.
//
// Nothing is decoded into a tree and written again: numbers keep their digits,
// unknown fields their bytes. Bodies are checked to be JSON of bounded depth
// before any of that. Typed requests, as an engine needs them, are in
// core/wire/openai.
package edge
