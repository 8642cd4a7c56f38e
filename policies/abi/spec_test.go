package abi_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// The specification lists what there is: columns with type and meaning, imports with
// their types, the sizes of blocks.
func TestSpecificationIsComplete(t *testing.T) {
	data, err := os.ReadFile("../../plugins-sdk/SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	spec := string(data)
	has := func(what, text string) {
		t.Helper()
		if !strings.Contains(spec, text) {
			t.Errorf("%s is not in SPEC.md: %s", what, text)
		}
	}
	rows := 0
	for _, kind := range abi.Kinds() {
		has("the block of kind "+string(kind), fmt.Sprintf("**%s**, %d bytes:", kind, kind.RequestSize()))
		for _, c := range kind.Columns() {
			has("a column of "+string(kind), fmt.Sprintf("| `%s` | %s | %s |", c.Name, c.Type, c.Help))
			rows++
		}
	}
	if n := strings.Count(spec, " | f32 | ") + strings.Count(spec, " | u32 | "); n != rows {
		t.Errorf("SPEC.md has %d columns; there are %d", n, rows)
	}
	for _, i := range abi.Imports() {
		has("an import", "`"+i.Name)
		if i.Module == abi.ImportModule {
			has("the type of "+i.Name, strings.ReplaceAll(i.Type.String(), ",", ""))
		}
	}
	for _, c := range abi.Capabilities() {
		has("a capability", "`"+string(c)+"`")
	}
}
