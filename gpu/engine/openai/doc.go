// Package openai is the adapter for any engine that serves the OpenAI API over
// HTTP: vLLM, SGLang, llama.cpp and others, attached by URL.
//
// Each worker incarnation has its own connection pool, so that one that hangs
// delays nobody else's calls and a restarted one starts with fresh connections.
// Idle connections are given up before servers usually close them. Bodies are
// sent from memory; nothing is compressed, redirected or proxied. http:// goes
// over gpu/engine/h1, https:// over net/http.
//
// An error says what may have begun: engine.ErrConnect means that no connection
// could be made, engine.ErrBroken that one ended early. A call is sent again by
// the adapter only when a used connection turned out to be closed.
// Choosing another worker is core/dispatch's business. The only shape here is
// aggregated; engines that disaggregate have adapters of their own.
package openai
