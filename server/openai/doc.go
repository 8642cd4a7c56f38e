// Package openai is the OpenAI front door: chat completions, completions,
// embeddings and models.
//
// A handler reads the body under a limit, takes from it what the gateway must
// know (core/wire/edge), hands it to core/dispatch and delivers the answer: a
// stream through server/sse, anything else whole. Errors have the OpenAI
// envelope, the status of their kind, and headers by which clients decide
// whether to come back. One line is logged per request, without prompts.
package openai
