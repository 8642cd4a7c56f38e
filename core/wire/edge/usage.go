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
	u := Usage{Known: true}
	v.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "prompt_tokens":
			u.Prompt = positive(value)
		case "completion_tokens":
			u.Output = positive(value)
		case "prompt_tokens_details":
			if value.IsObject() {
				cached := value.Get("cached_tokens")
				u.Cached, u.CachedKnown = positive(cached), cached.Type == gjson.Number
			}
		}
		return true
	})
	return u
}
