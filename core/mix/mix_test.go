package mix

import "testing"

// The generator's published sequence of seed 0 and of seed 1234567.
func TestNextIsSplitMix64(t *testing.T) {
	tests := []struct {
		seed uint64
		want []uint64
	}{
		{0, []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f}},
		{1234567, []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423}},
	}
	for _, tt := range tests {
		state := tt.seed
		for i, want := range tt.want {
			if got := Next(state); got != want {
				t.Errorf("seed %d, number %d: %#x, want %#x", tt.seed, i, got, want)
			}
			state += Gamma
		}
	}
}

func TestBitsKeepsZero(t *testing.T) {
	if got := Bits(0); got != 0 {
		t.Errorf("Bits(0) = %#x", got)
	}
}
