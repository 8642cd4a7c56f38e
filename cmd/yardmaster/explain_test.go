package main

import (
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/server/admin"
)

func TestExplanationNamesPolicies(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	_, rows := explanationTable(&admin.Explanation{Placements: []admin.Placement{{
		Path: "aggregated", Reason: "off", Policy: "a@1=1,b@2=3", PolicyIndex: 17, Canary: true, Fallback: "fuel",
		Parts: []string{"a@1", "b@2"}, Shadow: "c@3", Worker: "w1",
		Candidates: []admin.Candidate{
			{Worker: "w1", Cost: number(.5), Parts: []*float64{number(4), nil}, ShadowCost: number(2)},
			{Worker: "w2", Parts: []*float64{number(5), number(6)}, ShadowCost: nil},
		},
		Vetoed: []admin.Vetoed{{Worker: "w3", Why: "draining"}},
	}}})
	var notes []string
	for _, row := range rows {
		notes = append(notes, row[len(row)-1])
	}
	want := []string{
		"aggregated, off, a@1=1,b@2=3, bound at 17, canary, fallback: fuel, a@1 4, b@2 -, shadow c@3 2",
		"a@1 5, b@2 6, shadow c@3 -",
		"draining",
	}
	if !slices.Equal(notes, want) {
		t.Errorf("%q", notes)
	}
}

// A refusal has no candidates, and is explained all the same.
func TestExplanationOfARefusal(t *testing.T) {
	_, rows := explanationTable(&admin.Explanation{Placements: []admin.Placement{{Path: "refused", Reason: "slo_ttft", Policy: "gate@2", PolicyIndex: 7}}})
	if len(rows) != 1 || rows[0][1] != "admission" || rows[0][len(rows[0])-1] != "refused, slo_ttft, gate@2, bound at 7" {
		t.Errorf("%q", rows)
	}
}
