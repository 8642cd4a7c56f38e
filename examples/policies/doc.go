// Package policies holds the policies of this folder and of plugins-sdk/examples to
// their golden decisions, and the four languages to one another. It has no code of its
// own, only tests.
package policies
