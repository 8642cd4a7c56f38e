// Package engine is the contract of an engine adapter: what dispatch asks of
// an engine, and what an adapter must promise. Adapters live in gpu/engine;
// core/engine/enginetest proves that one keeps the contract.
//
// An adapter translates one [Call] into one engine's protocol and back. It
// holds no policy: it neither retries nor chooses.
//
// What gateways and workers must agree on beside calls is here as well: the headers
// between them, and in [OwnEpoch] how a worker knows whether it is the one meant.
package engine
