package model

// turn normalises each head of x if the model does so, then rotates it by the
// position of row r.
func (m *Model) turn(x, norm []float32, r int) {
	hd, half := m.cfg.HeadDim, len(m.freqs)
	cos, sin := m.s.cos[r*half:(r+1)*half], m.s.sin[r*half:(r+1)*half]
	for ; len(x) > 0; x = x[hd:] {
		head := x[:hd]
		if norm != nil {
			m.k.RMSNorm(head, head, norm, m.cfg.Eps)
		}
		if m.cfg.RopeNeox {
			rotate(head[:half], head[half:2*half], cos, sin)
		} else {
			rotatePairs(head[:2*half], cos, sin)
		}
	}
}

// Products are rounded before they are added, so that the compiler fuses them
// on no machine.

func rotate(a, b, cos, sin []float32) {
	for i, x := range a {
		y, c, s := b[i], cos[i], sin[i]
		a[i], b[i] = float32(x*c)-float32(y*s), float32(x*s)+float32(y*c)
	}
}

func rotatePairs(x, cos, sin []float32) {
	for i, c := range cos {
		s, a, b := sin[i], x[2*i], x[2*i+1]
		x[2*i], x[2*i+1] = float32(a*c)-float32(b*s), float32(a*s)+float32(b*c)
	}
}
