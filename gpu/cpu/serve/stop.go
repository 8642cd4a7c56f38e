package serve

// stopper finds stop strings in a text that comes in pieces and says how much
// of its end might still become one. It is a Knuth-Morris-Pratt automaton per
// string, so that it looks at each byte once however the strings repeat
// themselves.
type stopper struct {
	stops []string
	fail  [][]int16
	state []int // per string: how many of its bytes the text ends with
}

func newStopper(stops []string) *stopper {
	s := &stopper{stops: stops, state: make([]int, len(stops))}
	for _, stop := range stops {
		fail := make([]int16, len(stop)+1)
		k := 0
		for i := 1; i < len(stop); i++ {
			for k > 0 && stop[i] != stop[k] {
				k = int(fail[k])
			}
			if stop[i] == stop[k] {
				k++
			}
			fail[i+1] = int16(k)
		}
		s.fail = append(s.fail, fail)
	}
	return s
}

// feed takes the next piece. When a stop string is complete, end is how many
// bytes of the piece belong to the text up to and including it, and which is
// its number: the first to be complete, the longest of several. Otherwise which
// is -1.
func (s *stopper) feed(piece []byte) (end, which int) {
	for i, c := range piece {
		which = -1
		for n, stop := range s.stops {
			k := s.state[n]
			for k > 0 && stop[k] != c {
				k = int(s.fail[n][k])
			}
			if stop[k] == c {
				k++
			}
			s.state[n] = k
			if k == len(stop) && (which < 0 || len(stop) > len(s.stops[which])) {
				which = n
			}
		}
		if which >= 0 {
			return i + 1, which
		}
	}
	return len(piece), -1
}

// hold is how many bytes at the end of the text may be the beginning of a stop
// string.
func (s *stopper) hold() int {
	n := 0
	for _, k := range s.state {
		n = max(n, k)
	}
	return n
}
