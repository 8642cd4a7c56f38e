// Command go is the echo router; see policies/abi/testdata/conformance/router/policy.c.
package main

import ym "github.com/yardmaster/yardmaster/plugins-sdk/go"

var buf = [100]byte{1}

func score(r *ym.RouterRequest, w *table, p *params) bool {
	counterRows.Add(int64(w.N))
	counterCalls.Add(1)
	histogramSizes.Observe(float64(w.N))
	ym.Log(ym.Info, "echo")
	if p.What == 60 {
		return false
	}
	v := float32(field(r, p))
	for i := range w.N {
		switch p.What {
		case 20:
			w.Score[i] = w.Requests[i]
		case 21:
			w.Score[i] = float32(w.Role[i])
		case 22:
			w.Score[i] = w.NotYetKnown[i]
		default:
			w.Score[i] = v
		}
	}
	return true
}

func field(r *ym.RouterRequest, p *params) float64 {
	all := [...]float64{
		float64(r.Seed), float64(r.Model), float64(r.Tenant), float64(r.Session), float64(r.Columns), float64(r.Prompt),
		float64(r.Output), float64(r.BlockTokens), float64(r.Class), float64(r.Phase), float64(r.SLOFirst), float64(r.SLOBetween), float64(r.WaitedMillis),
	}
	switch what := p.What; what {
	case 30:
		return p.Weight
	case 31:
		if p.Flag {
			return 1
		}
		return 0
	case 32:
		return float64(what)
	case 40:
		return float64(ym.NowMillis())
	case 41:
		ym.Rand()
		return float64(ym.Rand() >> 40)
	case 50, 51, 52, 53, 54:
		return state(what)
	case 61:
		ym.Abort()
	case 62:
		for i := 0; ym.NowMillis() >= 0; i++ {
			buf[i%len(buf)]++
		}
	default:
		if what >= 0 && what < int64(len(all)) {
			return all[what]
		}
	}
	return -1
}

func state(what int64) float64 {
	switch what {
	case 50:
		return float64(ym.Add(ym.Local, []byte("n"), 3))
	case 51:
		if ym.Set(ym.Replicated, []byte("k"), []byte("v")) {
			return 0
		}
		return -1
	case 52:
		return float64(ym.Get(ym.Local, []byte("nothing"), buf[:]))
	case 53:
		ym.Set(ym.Local, []byte("long"), buf[:])
		return float64(ym.Get(ym.Local, []byte("long"), buf[1:11]))
	}
	last := int64(0)
	for range 9 {
		last = ym.Add(ym.Local, []byte("nine"), 1)
	}
	return float64(last)
}
