// Package scrape reads the /metrics of Yardmaster's processes, for benchmarks
// and system tests. Operators use Prometheus.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/yardmaster/yardmaster/core/measure"
)

// Metrics is one scrape.
type Metrics map[string]*dto.MetricFamily

// maxBytes bounds a scrape.
const maxBytes = 64 << 20

// Read scrapes the process at url, the root of its listener.
func Read(ctx context.Context, client *http.Client, url string) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape: %s answers status %d", url, resp.StatusCode)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, maxBytes))
	if err != nil {
		return nil, fmt.Errorf("scrape: %s: %w", url, err)
	}
	return families, nil
}

// Sum adds up the series of a family that have all the given label values:
// values of counters and gauges, sums of histograms. A family that is not there
// adds nothing.
func (m Metrics) Sum(d measure.Desc, values ...string) float64 {
	total := 0.0
	for _, series := range m[d.Name].GetMetric() {
		if has(series, values) {
			total += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetHistogram().GetSampleSum()
		}
	}
	return total
}

func has(series *dto.Metric, values []string) bool {
	for _, v := range values {
		found := false
		for _, l := range series.GetLabel() {
			found = found || l.GetValue() == v
		}
		if !found {
			return false
		}
	}
	return true
}
