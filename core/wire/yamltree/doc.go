// Package yamltree parses YAML that a stranger may have written.
//
// The parser behind it takes time and memory in the square of how deep brackets
// and dashes nest and of how many keys one mapping has: thirty thousand bytes of
// brackets cost seconds and more than a gigabyte. Its lexer is linear, so both
// are bounded on the tokens, before anything is built of them.
//
// What a tree means is the caller's: cmd/internal/config reads settings from it,
// gpu/engine/scripted a script.
package yamltree
