package edge

import (
	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Usage is what an engine says a request cost.
type Usage struct {
	Known  bool        // the engine reported it; else the rest is zero
	Prompt unit.Tokens // prompt tokens
	Cached unit.Tokens // the part of Prompt found in the engine's prefix cache
	Output unit.Tokens // generated tokens
	// CachedKnown says that the engine reported Cached. Many do not, unless asked
	// to, which is not the same as none.
	CachedKnown bool
}

// usageOf reads a usage object. Numbers that are absent or absurd count as 0.
func usageOf(v gjson.Result) Usage {
	if !v.IsObject() {
		return Usage{}
	}
	cached := v.Get("prompt_tokens_details.cached_tokens")
	return Usage{
		Known:  true,
		Prompt: positive(v.Get("prompt_tokens")),
		Output: positive(v.Get("completion_tokens")),
		Cached: positive(cached), CachedKnown: cached.Type == gjson.Number,
	}
}
