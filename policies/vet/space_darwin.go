package vet

// addressSpace is not known: this system does not hold a process to a limit on it.
func addressSpace() (uint64, bool) { return 0, false }
