// Package prompt gives a request its identity: how many tokens its prompt has
// and the chain of block hashes ([prefix.Hash]) by which requests and caches
// that share a beginning find each other. It never asks a worker.
//
// Where the model's tokenizer and chat template are known ([Text]), the identity
// is exact: the request is rendered and encoded as an engine does it, and the
// hashes are those of the tokens in the engine's KV events. What an engine would
// do that this package does not (images, tools, a template in the request), an
// unknown model or a very long text make it fall back to bytes: the chain then
// covers the request's own text in a canonical form that grows as a conversation
// grows, and the number of tokens is an estimate.
//
// A bounded cache remembers the tokens and hashes of pieces of text, so that a
// repeated beginning costs little more than reading it. Texts are cut only where
// [tokens.Tokenizer.Cut] proves that it changes nothing, and a piece found is
// compared byte by byte: with the cache and without, the identity is the same.
//
// Bodies have been checked by core/wire/edge. Which worker a chain leads to is
// core/prefix's and core/route's business.
package prompt
