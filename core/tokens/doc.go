// Package tokens turns text into a model's token ids and back, and renders
// chats with the model's own template.
//
// A [Tokenizer] is a byte-level BPE with one of four pre-tokenizers: gpt-2,
// smollm, llama-bpe (Llama 3) and qwen2. It is built from a [Vocab], which a
// reader of GGUF metadata fills, or from the bytes of a Hugging Face
// tokenizer.json by [FromJSON]. A [Template] renders messages as Jinja does, in
// a sandbox with a budget. A [Detokenizer] makes text that never ends inside a
// character out of a stream of ids.
//
// Other kinds of tokenizer (SentencePiece, WordPiece, tiktoken files) and other
// pre-tokenizers are refused by name: ids that are almost right would be worse
// than none. The package reads no files; see gpu/cpu/serve for the adapter from
// GGUF.
package tokens
