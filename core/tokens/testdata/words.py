"""Makes words.json: how Hugging Face tokenizers split texts (pip install tokenizers)."""
import json, random, sys
from tokenizers import Regex, pre_tokenizers as p

LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA.replace("{1,%d}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
split = lambda r: p.Split(Regex(r), "isolated")
PRE = {
    "gpt-2": split(GPT2),
    "smollm": p.Sequence([p.Digits(individual_digits=True), split(GPT2)]),
    "llama-bpe": split(LLAMA % 3),
    "qwen2": split(QWEN),
}
rng = random.Random(7)
ATOMS = (["'s", "'T", "'Re", "'ve", "'LL", "'m", "'d", "'x", "'", "ſ", "'ſ", "'ſx"]
         + list(" \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff")
         + ["  ", "   ", "\r\n", " \n", "\n ", "\n\n"]
         + list("aZéßñжΩ中文あ한ةकि\u0301\u0327ªⅷ") + ["hello", "World"]
         + list("0123456789²½٣五Ⅳ৪") + ["12", "1234", "3.14"]
         + list("!?.,-_#$%&*()[]{}<>/\\|\"`~^=+@") + ["--", "...", "€", "😀", "👩‍👧", "\u0000", "\u007f", "\u00ad"])
texts = ["", "Hello world", "I'll don't WE'RE it'S", "a  b   c\n\n  d\t\te ", "x = 12345.678;\r\n\r\n\tfoo()  // bar"]
texts += ["".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 14))) for _ in range(500)]
rows = []
for t in texts:
    rows.append([t] + [[t[a:b] for _, (a, b) in PRE[k].pre_tokenize_str(t)] for k in PRE])
json.dump({"columns": list(PRE), "rows": rows}, open("words.json", "w"), ensure_ascii=True, separators=(",", ":"))
