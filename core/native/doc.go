// Package native finds a policy that is part of the program by its name and sets its
// parameters, for the packages that have such policies: admit, route and scale. Which
// there are, and what can be set, each of them says itself; how it is written is read
// here. Policies in Wasm are of package policies/live.
package native
