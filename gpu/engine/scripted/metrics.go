package scripted

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// family is one metric family in the text format.
type family struct {
	name, kind, help string
	value            func(l *load) float64 // gauges and counters
	hist             func(l *load) *histogram
}

// families are vLLM's names for what the engine counts.
func families() []family {
	gauge := func(name, help string, v func(*load) float64) family {
		return family{name: "vllm:" + name, kind: "gauge", help: help, value: v}
	}
	counter := func(name, help string, v func(*load) float64) family {
		return family{name: "vllm:" + name, kind: "counter", help: help, value: v}
	}
	hist := func(name, help string, v func(*load) *histogram) family {
		return family{name: "vllm:" + name, kind: "histogram", help: help, hist: v}
	}
	return []family{
		gauge("num_requests_running", "Requests in the batch.", func(l *load) float64 { return float64(l.running) }),
		gauge("num_requests_waiting", "Requests waiting.", func(l *load) float64 { return float64(l.waiting) }),
		gauge("kv_cache_usage_perc", "Share of KV blocks held by requests, 0 to 1.", func(l *load) float64 {
			return float64(l.held) / float64(l.capacity)
		}),
		counter("prefix_cache_queries_total", "Prompt tokens looked up.", func(l *load) float64 { return float64(l.stats.prefixQueries) }),
		counter("prefix_cache_hits_total", "Prompt tokens found.", func(l *load) float64 { return float64(l.stats.prefixHits) }),
		counter("external_prefix_cache_queries_total", "Prompt tokens expected from elsewhere.", func(l *load) float64 { return float64(l.stats.externalQueries) }),
		counter("external_prefix_cache_hits_total", "Prompt tokens received from elsewhere.", func(l *load) float64 { return float64(l.stats.externalHits) }),
		counter("prompt_tokens_total", "Prompt tokens computed.", func(l *load) float64 { return float64(l.stats.promptTokens) }),
		counter("generation_tokens_total", "Tokens generated.", func(l *load) float64 { return float64(l.stats.generationTokens) }),
		counter("num_preemptions_total", "Requests preempted.", func(l *load) float64 { return float64(l.stats.preemptions) }),
		hist("time_to_first_token_seconds", "Queueing to first token.", func(l *load) *histogram { return &l.stats.ttft }),
		hist("e2e_request_latency_seconds", "Queueing to last token.", func(l *load) *histogram { return &l.stats.e2e }),
		hist("request_queue_time_seconds", "Queueing to prefill.", func(l *load) *histogram { return &l.stats.queue }),
	}
}

// metrics answers /metrics, distorted as the script says.
func (x *exchange) metrics() error {
	script := &x.engine().play.Load().script.Metrics
	if script.Status != 0 {
		x.out.header(script.Status)
		return nil
	}
	text := x.inc.metricsText(script)
	x.w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	x.out.header(http.StatusOK)
	return x.out.write(text)
}

func (inc *incarnation) metricsText(script *MetricsScript) []byte {
	if !script.Stale {
		return inc.renderMetrics(script)
	}
	inc.mu.Lock()
	stale := inc.stale
	inc.mu.Unlock()
	if stale != nil {
		return stale
	}
	stale = inc.renderMetrics(script)
	inc.mu.Lock()
	defer inc.mu.Unlock()
	inc.stale = stale
	return stale
}

func (inc *incarnation) renderMetrics(script *MetricsScript) []byte {
	loads := make([]load, len(inc.ranks))
	for i, r := range inc.ranks {
		loads[i] = r.load()
	}
	var b bytes.Buffer
	for _, f := range families() {
		if slices.Contains(script.Omit, f.name) {
			continue
		}
		name := f.name
		if n := script.Rename[name]; n != "" {
			name = n
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, f.help, name, f.kind)
		for rank := range loads {
			labels := inc.labels(rank)
			if f.hist != nil {
				writeHistogram(&b, name, labels, f.hist(&loads[rank]))
				continue
			}
			fmt.Fprintf(&b, "%s{%s} %s\n", name, labels, script.override(f.name, rank, f.value(&loads[rank])))
		}
	}
	inc.writeFinished(&b, loads)
	inc.writeInfo(&b)
	return b.Bytes()
}

func (inc *incarnation) labels(rank int) string {
	return `engine="` + strconv.Itoa(rank) + `",model_name="` + inc.e.opts.Model + `"`
}

// override is the script's value for a series, or v.
func (s *MetricsScript) override(name string, rank int, v float64) string {
	for _, o := range s.Set {
		if o.Name == name && (o.Rank == nil || *o.Rank == rank) {
			return o.Value
		}
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func writeHistogram(b *bytes.Buffer, name, labels string, h *histogram) {
	n := 0
	for i, bound := range bucketBounds {
		n += h.counts[i]
		fmt.Fprintf(b, "%s_bucket{%s,le=\"%v\"} %d\n", name, labels, bound, n)
	}
	n += h.counts[len(bucketBounds)]
	fmt.Fprintf(b, "%s_bucket{%s,le=\"+Inf\"} %d\n", name, labels, n)
	fmt.Fprintf(b, "%s_sum{%s} %v\n%s_count{%s} %d\n", name, labels, h.sum, name, labels, n)
}

func (inc *incarnation) writeFinished(b *bytes.Buffer, loads []load) {
	const name = "vllm:request_success_total"
	fmt.Fprintf(b, "# HELP %s Finished requests.\n# TYPE %s counter\n", name, name)
	for rank := range loads {
		for _, reason := range []string{"stop", "length", "abort"} {
			fmt.Fprintf(b, "%s{%s,finished_reason=%q} %d\n", name, inc.labels(rank), reason, loads[rank].stats.reasons[reason])
		}
	}
}

func (inc *incarnation) writeInfo(b *bytes.Buffer) {
	const name = "vllm:cache_config_info"
	fmt.Fprintf(b, "# HELP %s The KV cache's shape.\n# TYPE %s gauge\n", name, name)
	for rank := range inc.ranks {
		fmt.Fprintf(b, "%s{%s,block_size=\"%d\",num_gpu_blocks=\"%d\"} 1\n",
			name, inc.labels(rank), inc.e.opts.BlockTokens, inc.e.opts.KVBlocks)
	}
}
