package main

import (
	"testing"

	ym "github.com/yardmaster/yardmaster/plugins-sdk/go"
)

func TestScore(t *testing.T) {
	w := &table{N: 2, QueuedTokens: &ym.F32{900, 100}, HitTokens: &ym.F32{992, 0}, Score: &ym.F32{}}
	if !score(&ym.RouterRequest{Prompt: 1000}, w, &params{HitWeight: 1}) || w.Score[0] != 908 || w.Score[1] != 1100 {
		t.Errorf("scores %v", w.Score[:2])
	}
}
