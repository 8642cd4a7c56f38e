package gguftest

// merges join the commonest pairs of English, so that tokens of several bytes
// occur. A letter preceded by Ġ (the byte-level form of a space) starts a word.
var merges = []string{
	"Ġ t", "Ġ a", "i n", "h e", "r e", "o n", "e r", "Ġt he", "Ġ s", "a t",
	"Ġ w", "o u", "n d", "i s", "i t", "e n", "Ġ o", "in g", "o r", "Ġa nd", "l l",
}

// chatTemplate is the ChatML form, one turn after another.
const chatTemplate = `{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// writeTokenizer adds a byte-level BPE tokenizer and returns its size, a
// multiple of 8 but not of 16, so that a ragged last panel is always tested.
func writeTokenizer(w *Writer, o Options) int {
	tokens := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
	types := []int32{3, 3, 3}
	add := func(s string) {
		tokens = append(tokens, s)
		types = append(types, 1)
	}
	for b := range 256 {
		add(string(byteRune(byte(b))))
	}
	for _, m := range merges {
		left, right := split(m)
		add(left + right)
	}
	w.Key("tokenizer.ggml.model", "gpt2")
	w.Key("tokenizer.ggml.pre", o.Pre)
	w.Key("tokenizer.ggml.tokens", tokens)
	w.Key("tokenizer.ggml.token_type", types)
	w.Key("tokenizer.ggml.merges", merges)
	w.Key("tokenizer.ggml.bos_token_id", uint32(StartTurn))
	w.Key("tokenizer.ggml.eos_token_id", uint32(EndTurn))
	w.Key("tokenizer.ggml.unknown_token_id", uint32(EndOfText))
	w.Key("tokenizer.ggml.padding_token_id", uint32(EndTurn))
	w.Key("tokenizer.ggml.add_bos_token", false)
	w.Key("tokenizer.ggml.add_space_prefix", false)
	w.Key("tokenizer.chat_template", chatTemplate)
	return len(tokens)
}

func split(merge string) (left, right string) {
	for i, r := range merge {
		if r == ' ' {
			return merge[:i], merge[i+1:]
		}
	}
	return merge, ""
}

// byteRune is GPT-2's printable stand-in for a byte: itself if it is printable
// Latin-1, else the next free code point from 256.
func byteRune(b byte) rune {
	printable := func(b int) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad }
	if printable(int(b)) {
		return rune(b)
	}
	r := rune(256)
	for x := range int(b) {
		if !printable(x) {
			r++
		}
	}
	return r
}
