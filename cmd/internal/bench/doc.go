// Package bench measures what `yardmaster bench` prints: the CPU engine's
// speed ([Engine]), and what disaggregation adds to the time to first token
// and why ([PD]).
//
// Every figure is a median of several runs, prompts are never repeated, so that
// no cache answers, and what a figure is made of is printed beside it.
package bench
