package builtin

import _ "embed" // of the modules

//go:embed kv-cost/policy.wasm
var kvCost []byte

// Prefix is what a policy's name begins with where one of these is meant in place of a
// file: builtin:kv-cost.
const Prefix = "builtin:"

// Names lists the policies that there are.
func Names() []string { return []string{"kv-cost"} }

// Module is the bytes of one of Names, and whether there is such a policy. Do not
// change them.
func Module(name string) ([]byte, bool) {
	if name == "kv-cost" {
		return kvCost, true
	}
	return nil, false
}

// KVCost is the policy kv-cost: it decides as the native one does, to the last bit of
// the columns that it is given; its scores are how much dearer a worker is than the
// best one. Do not change the bytes.
func KVCost() []byte { return kvCost }
