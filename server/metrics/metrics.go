package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/yardmaster/yardmaster/core/measure"
)

// Collector is a prometheus.Collector over a registry. Families appear as they
// are first used, so it describes nothing in advance.
type Collector struct{ Registry *measure.Registry }

// Describe sends nothing, which makes the collector an unchecked one.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present value of every series.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.Registry.Snapshot() {
		desc := prometheus.NewDesc(f.Desc.Name, f.Desc.Help, f.Desc.Labels, nil)
		for i := range f.Series {
			out <- metric(desc, &f.Desc, &f.Series[i])
		}
	}
}

func metric(desc *prometheus.Desc, d *measure.Desc, s *measure.Series) prometheus.Metric {
	var m prometheus.Metric
	var err error
	switch d.Type {
	case measure.HistogramType:
		m, err = histogram(desc, d, s)
	case measure.GaugeType:
		m, err = prometheus.NewConstMetric(desc, prometheus.GaugeValue, s.Value, s.Labels...)
	case measure.CounterType:
		m, err = prometheus.NewConstMetric(desc, prometheus.CounterValue, s.Value, s.Labels...)
	}
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// histogram turns counts per bucket into Prometheus' cumulative ones.
func histogram(desc *prometheus.Desc, d *measure.Desc, s *measure.Series) (prometheus.Metric, error) {
	buckets := make(map[float64]uint64, len(d.Buckets))
	var total uint64
	for i, n := range s.Counts {
		total += n
		if i < len(d.Buckets) {
			buckets[d.Buckets[i]] = total
		}
	}
	return prometheus.NewConstHistogram(desc, total, s.Sum, buckets, s.Labels...)
}

// Handler serves registry, the Go runtime's and the process's metrics. A scrape
// takes at most ten seconds, and two run at once.
func Handler(registry *measure.Registry) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(Collector{registry}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		MaxRequestsInFlight: 2,
		Timeout:             10 * time.Second,
		ErrorHandling:       promhttp.ContinueOnError,
	})
}
