// Package model runs Llama-family transformers on the CPU.
//
// [Open] reads a GGUF file of architecture llama, qwen2 or qwen3 and repacks
// its weights for package kernel; a [Model] then computes steps for package
// batch: tokens in, keys and values into a [kv.Pool], hidden states and logits
// out. It knows nothing of requests, sampling or text; the tokenizer's
// metadata is in [Model.Metadata].
//
// The exact mode computes in float32 throughout and is the reference. The fast
// mode quantises activations to 8 bits wherever the weights are quantised, and
// keeps keys and values in half precision. In both, what a sequence gets does
// not depend on its neighbours in the step, on how its prompt was cut, or on
// the number of threads, bit for bit.
//
// Refused by name: other architectures, mixtures of experts, YaRN and similar
// scaling of positions, soft-capping, and any tensor that the architecture has
// no use for.
package model
