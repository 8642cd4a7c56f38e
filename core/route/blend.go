package route

import (
	"math"
	"strconv"
	"strings"
)

// Weighted is a policy's part in a [Blend].
type Weighted struct {
	Policy Policy
	Weight float64 // positive
}

// Blend adds up policies whose costs have different units: each is stretched to
// [0, 1] over the candidates first, where 0 is its best and 1 its worst. What
// one of them finds ineligible is out; an infinite cost counts as its worst.
type Blend struct{ Parts []Weighted }

// Name lists the parts with their weights, as [PolicyNamed] reads them.
func (b Blend) Name() string {
	var s strings.Builder
	for i, p := range b.Parts {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(p.Policy.Name() + "=" + strconv.FormatFloat(p.Weight, 'g', -1, 64))
	}
	return s.String()
}

// Score is the weighted sum.
func (b Blend) Score(q *Query, c *Columns, cost []float64) {
	clear(cost)
	for _, p := range b.Parts {
		part := c.Part(p.Policy.Name())
		p.Policy.Score(q, c, part)
		lowest, highest := math.Inf(1), math.Inf(-1)
		for _, v := range part {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				lowest, highest = min(lowest, v), max(highest, v)
			}
		}
		for i, v := range part {
			cost[i] += p.Weight * stretched(v, lowest, highest)
		}
	}
}

func stretched(v, lowest, highest float64) float64 {
	switch {
	case math.IsNaN(v):
		return v
	case math.IsInf(v, 1):
		return 1
	case highest <= lowest:
		return 0
	}
	return min(max((v-lowest)/(highest-lowest), 0), 1)
}
