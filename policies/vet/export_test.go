package vet

import "time"

// Confine limits this process to so much memory beyond what it has.
func Confine(memory int64) error { return confine(job{Memory: memory, Timeout: 30 * time.Second}) }
