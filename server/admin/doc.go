// Package admin is the API for operators, on a listener of its own: how a
// request was placed. It answers in JSON and shows no text of requests.
//
// It does not authenticate, so it belongs on a loopback address, which
// [CheckAddress] makes sure of. A gateway's readiness and metrics are the root
// package's; those of a process without a client API are here, [Status].
package admin
