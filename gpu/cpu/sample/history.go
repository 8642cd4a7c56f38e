package sample

// history counts a request's tokens for the penalties.
type history struct {
	on         bool
	repetition float32
	presence   float32
	frequency  float32
	slot       map[int32]int32 // token to its place in the slices
	ids        []int32
	counts     []int32 // times generated; 0 for a token of the prompt alone
}

func (h *history) init(p *Params, prompt []int32) {
	h.repetition = p.RepetitionPenalty
	if h.repetition == 0 {
		h.repetition = 1
	}
	h.presence, h.frequency = p.PresencePenalty, p.FrequencyPenalty
	h.on = h.repetition != 1 || h.presence != 0 || h.frequency != 0
	if !h.on {
		return
	}
	h.slot = map[int32]int32{}
	if h.repetition != 1 {
		for _, t := range prompt {
			h.place(t)
		}
	}
}

func (h *history) place(t int32) int32 {
	at, ok := h.slot[t]
	if !ok {
		at = int32(len(h.ids))
		h.slot[t] = at
		h.ids = append(h.ids, t)
		h.counts = append(h.counts, 0)
	}
	return at
}

// add counts a generated token.
func (h *history) add(t int32) {
	if h.on {
		h.counts[h.place(t)]++
	}
}

// penalise applies the penalties of OpenAI (presence, frequency) and of CTRL
// (repetition, Keskar et al. 2019) to the tokens seen.
func (h *history) penalise(logits []float32) {
	if !h.on {
		return
	}
	for i, id := range h.ids {
		if id < 0 || int(id) >= len(logits) {
			continue
		}
		l := logits[id]
		if l > 0 {
			l /= h.repetition
		} else {
			l *= h.repetition
		}
		if n := h.counts[i]; n > 0 {
			l -= h.presence + float32(h.frequency*float32(n))
		}
		logits[id] = l
	}
}
