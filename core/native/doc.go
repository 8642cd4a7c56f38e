// Package native finds a policy that is part of the program by its name, for the
// packages that have such policies: admit, route and scale. Which there are, and how
// a name with parameters is read, each of them says itself; policies in Wasm are of
// package policies/live.
package native
