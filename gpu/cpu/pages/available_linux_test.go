package pages

import "testing"

func TestKilobytes(t *testing.T) {
	const text = "MemTotal:       16 kB\nMemAvailable:    12345 kB\nOther: x\n"
	for name, want := range map[string]int64{"MemAvailable:": 12345 << 10, "MemTotal:": 16 << 10, "Other:": 0, "None:": 0} {
		if got := kilobytes([]byte(text), name); got != want {
			t.Errorf("%s %d, want %d", name, got, want)
		}
	}
	if Available() <= 0 {
		t.Error("this machine says nothing of its memory")
	}
}
