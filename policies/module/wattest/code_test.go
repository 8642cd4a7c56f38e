package wattest_test

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

func TestCode(t *testing.T) {
	tests := []struct{ text, want string }{
		{"i32.const -1 drop", "417f1a"},
		{"i64.const 0x7fffffffffffffff drop", "42ffffffffffffffffff001a"},
		{"f32.const 1.5", "430000c03f"},
		{"block i32 loop end if 7 else end end", "027f03400b04070" + "50b0b"},
		{"local.get 300", "20ac02"},
		{"i32.const 0 br_table 2 0 1 2", "41000e02000102"},
		{"i64.load 8", "290308"},
		{"memory.copy memory.fill memory.grow", "fc0a0000fc0b004000"},
		{"call_indirect 3 0 table.init 1 2", "110300fc0c0102"},
		{"v128.const 1 2", "fd0c01000000000000000200000000000000"},
		{"i32x4.mul v128.load8_lane 5 3", "fdb501fd54000503"},
		{"select-t funcref ref.null externref", "1c0170d06f"},
		{"byte 0xfe byte 3", "fe03"},
	}
	for _, tt := range tests {
		if got := hex.EncodeToString(wattest.Code(tt.text)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.text, got, tt.want)
		}
	}
}

func TestCodeThatCannotBe(t *testing.T) {
	for _, text := range []string{"i32.frobnicate", "i32.const", "i32.const x", "select-t i31"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was assembled", text)
				}
			}()
			wattest.Code(text)
		}()
	}
}

func TestRandomFollowsItsChoices(t *testing.T) {
	build := func() string { return string(wattest.Random(rand.New(rand.NewPCG(5, 5)).IntN).Bytes()) }
	if a, b := build(), build(); a != b {
		t.Error("the same choices made two modules")
	}
	if len(wattest.Random(wattest.Choices(nil)).Bytes()) == 0 {
		t.Error("no choices make no module")
	}
}
