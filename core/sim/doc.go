// Package sim replays a trace of requests in virtual time, over modelled engines,
// through the router and the prefix index that gateways use.
//
// [Run] is one goroutine and one seed: the same configuration and trace give the same
// [Report] on every machine, and an hour of traffic takes seconds. Engines batch
// continuously with chunked prefill, at the speed of a [cost.EngineTime]; their
// caches are least recently used blocks, which they report as workers do, in frames.
// Policies are route.Policy, native ones or in Wasm, so what is tried here is what
// runs there.
//
// Of a request, policies are told its conversation, its class, which is standard, the
// output to expect, which is the mean so far, and how long it waited: of tenants and of
// wanted times a trace knows nothing.
//
// One gateway routes, workers neither fail nor come and go, and what they say of
// themselves is a second old at most. The numbers compare policies; they do not
// promise what hardware will do.
package sim
