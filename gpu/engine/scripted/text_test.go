package scripted

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/prefix"
	identity "github.com/yardmaster/yardmaster/core/prompt"
)

// A gateway that knows Text gives requests the block hashes of the engine's own
// tokens.
func TestTextGivesTheEnginesTokens(t *testing.T) {
	reader := identity.New(identity.Options{Texts: map[string]*identity.Text{"m": {Encoder: Text{}, Template: Text{}}}, Cache: 1 << 20})
	rng := rand.New(rand.NewPCG(1, 2))
	var scratch identity.Scratch
	content := func() string {
		return fmt.Sprintf("%q", strings.Repeat("é b", rng.IntN(400)))
	}
	turns := ""
	for i := range 60 {
		if i%12 == 0 {
			turns = `{"role":"system","content":` + content() + `}`
		}
		turns += `,{"role":"user","content":[{"type":"text","text":` + content() + `},{"type":"text","text":"b"}]}`
		body := `{"model":"m","messages":[` + turns + `]}`
		api := &apiRequest{}
		if err := json.Unmarshal([]byte(body), api); err != nil {
			t.Fatal(err)
		}
		j := &job{api: api, chat: true}
		if err := j.readPrompts(); err != nil {
			t.Fatal(err)
		}
		ids := make([]int32, len(j.prompts[0].ids))
		for i, id := range j.prompts[0].ids {
			ids[i] = int32(id)
		}
		scope := prefix.Scope{Base: "m"}
		got := reader.Identify(t.Context(), identity.Chat, []byte(body), identity.Target{Scope: scope, BlockTokens: 16}, &scratch)
		if want := prefix.AppendChain(nil, scope.Seed(), ids, 16); !got.Exact || int(got.Tokens) != len(ids) || !slices.Equal(got.Chain, want) {
			t.Fatalf("exact %v, %d tokens; the engine has %d", got.Exact, got.Tokens, len(ids))
		}
	}
}
