//go:build !wasip1

package ym

import "math"

// Without a host there is no state, no clock and no chance.

func logLine(Level, string)             {}
func nowMillis() int64                  { return 0 }
func random() uint64                    { return 0 }
func counterAdd(uint32, int64)          {}
func histObserve(uint32, float64)       {}
func kvGet(Scope, []byte, []byte) int32 { return -1 }
func kvSet(Scope, []byte, []byte) int32 { return -1 }
func kvAdd(Scope, []byte, int64) int64  { return math.MinInt64 }

func abort() { panic("the policy gave up") }
