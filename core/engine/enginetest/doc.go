// Package enginetest proves that an adapter keeps the contract of core/engine:
// what an error means, that cancelling reaches the engine, that bytes pass
// unchanged and in time, and that nothing is left behind.
//
// core may not open sockets, so the adapter's own test brings the engine: a
// [Rig] that behaves as a [Behaviour] says and reports what it saw.
//
//	func TestContract(t *testing.T) { enginetest.Run(t, newRig) }
package enginetest
