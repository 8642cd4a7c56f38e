package scripted

// stats is what a rank counts. Tokens are counted where they are computed.
type stats struct {
	promptTokens, generationTokens int
	prefixQueries, prefixHits      int
	externalQueries, externalHits  int
	preemptions                    int
	reasons                        map[string]int // finished requests by finish reason
	ttft, e2e, queue               histogram
}

func (s *stats) finished(reason string, q *seq) {
	if s.reasons == nil {
		s.reasons = map[string]int{}
	}
	s.reasons[reason]++
	s.e2e.observe(q.finished.Sub(q.enqueued).Seconds())
	if !q.started.IsZero() {
		s.queue.observe(q.started.Sub(q.enqueued).Seconds())
	}
}

// bucketBounds are the upper bounds of every histogram, in seconds.
var bucketBounds = [...]float64{.001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// histogram counts observations in seconds.
type histogram struct {
	counts [len(bucketBounds) + 1]int // not cumulative; the last is above all bounds
	sum    float64
}

func (h *histogram) observe(seconds float64) {
	i := 0
	for i < len(bucketBounds) && seconds > bucketBounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += seconds
}
