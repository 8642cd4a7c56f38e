// Package cpu is the adapter for engines that a Yardmaster worker hosts: the
// CPU engine and the scripted one. They speak the OpenAI API; what belongs to
// disaggregation travels in the headers of core/engine, so that the client's
// body passes untouched.
package cpu
