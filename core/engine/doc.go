// Package engine is the contract of an engine adapter: what dispatch asks of
// an engine, and what an adapter must promise. Adapters live in gpu/engine;
// core/engine/enginetest proves that one keeps the contract.
//
// An adapter translates one [Call] into one engine's protocol and back. It
// holds no policy: it neither retries nor chooses.
package engine
