package openai

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// Whatever a client claims, the memory that its body is given stays in
// proportion to what it has sent, and what it has sent is read as it is.
func TestMemoryFollowsWhatWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 1<<20).Draw(t, "limit")
		sent := rapid.Int64Range(0, limit).Draw(t, "sent")
		claim := rapid.SampledFrom([]int64{-1, sent, limit}).Draw(t, "claim")
		text := bytes.Repeat([]byte("x"), int(sent))
		src, left := io.Reader(bytes.NewReader(text)), errors.New("the client left")
		if claim > sent {
			src = io.MultiReader(src, iotest.ErrReader(left))
		}
		var room int64
		body, err := grow(src, claim, limit, func(more, all int64) error {
			if room += more; room != all || more <= 0 && all > 0 {
				t.Fatalf("%d more of %d", more, all)
			}
			return nil
		})
		if most := max(firstRead, growth*sent); room > min(most, limit) {
			t.Errorf("%d bytes of memory for %d sent", room, sent)
		}
		if claim > sent {
			if !errors.Is(err, left) {
				t.Errorf("half a body: %v", err)
			}
			return
		}
		if err != nil || !bytes.Equal(body, text) {
			t.Errorf("%d of %d bytes, %v", len(body), sent, err)
		}
	})
}

func TestGrowStopsWhereNoMemoryIsGiven(t *testing.T) {
	full := errors.New("full")
	_, err := grow(bytes.NewReader(make([]byte, 1<<20)), 1<<20, 1<<20, func(_, room int64) error {
		if room > firstRead {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Error(err)
	}
}
