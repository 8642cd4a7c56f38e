// Package measure counts what happens: counters, gauges and histograms in a
// [Registry], cheap enough for the request path (one atomic add, no lock, no
// allocation once a series exists).
//
// Every metric is declared in catalog.go with its help text, unit, labels and
// series cap; nothing else may name one. When a family reaches its cap, new
// label values share one series whose labels all read "other", so that a
// client cannot grow our memory or the operator's database.
//
// measure does not export: server/metrics renders a [Snapshot] for Prometheus.
package measure
