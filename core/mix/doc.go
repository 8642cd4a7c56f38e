// Package mix spreads the bits of a word, so that numbers that resemble one
// another (ids, positions, hashes of poor quality) serve as keys, seeds and
// places on a ring. It is SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014).
//
// Every node computes the same, in every release: canaries, checksums of the
// prefix index and sessions depend on it. It is no secret and guards nothing;
// bytes are hashed by xxhash.
package mix
