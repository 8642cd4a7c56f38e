// Package cases tests that the failures of other gateways do not happen here.
//
// A case is a symptom somebody reported of some gateway. Its test is about the
// whole kind, not the number in the report: scripted engines and a gateway on
// real sockets, judged from outside, by what clients get and what engines see.
// DESIGN.md lists them. How one room does its work is tested there.
package cases
