package unit

import "testing"

func TestBlocksFor(t *testing.T) {
	tests := []struct {
		name          string
		tokens, block Tokens
		want          Blocks
	}{
		{"none", 0, 16, 0},
		{"negative", -3, 16, 0},
		{"no block size", 10, 0, 0},
		{"partial", 1, 16, 1},
		{"exact", 32, 16, 2},
		{"one over", 33, 16, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := BlocksFor(tt.tokens, tt.block); got != tt.want {
				t.Errorf("BlocksFor(%d, %d) = %d, want %d", tt.tokens, tt.block, got, tt.want)
			}
		})
	}
}
