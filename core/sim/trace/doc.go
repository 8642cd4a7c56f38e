// Package trace holds request traces: when requests came, how long their prompts
// and outputs were, and which prompts share a prefix.
//
// [Read] takes the Mooncake format, one JSON object a line: timestamp (ms),
// input_length, output_length (tokens) and hash_ids, one id a block of the
// prompt, where equal ids mean an equal prefix up to and including the block. A row
// may name its conversation, as session, a string or a number; without it a prompt
// that goes on from where an earlier one ended is of that one's.
// [Generate] makes a trace with the statistics of the Mooncake conversation
// trace, so that nothing here needs the file.
package trace
