// Package admin is the API for operators, on a listener of its own: how a
// request was placed. It answers in JSON and shows no text of requests.
//
// It does not authenticate, so it belongs on a loopback address, which
// [CheckAddress] makes sure of. Readiness and metrics are the root package's and
// server/metrics'.
package admin
