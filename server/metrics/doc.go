// Package metrics renders a core/measure registry for Prometheus.
//
// Names, help, labels and the cap on series are measure's; this package only
// translates a snapshot at each scrape, and adds the Go runtime's own metrics.
package metrics
