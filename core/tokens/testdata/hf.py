"""Makes hf.json: small byte-level BPEs trained, saved and run by Hugging Face tokenizers (pip install tokenizers)."""
import json,random
from tokenizers import Tokenizer, models, trainers, pre_tokenizers as p, decoders, processors, normalizers, Regex, AddedToken
LL=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QW=LL.replace("{1,3}","")
rng=random.Random(3)
corpus=["The quick brown fox jumps over the lazy dog. It's 12345 o'clock; we'll see, DON'T we?\n\n  indented\tcode(x) = y[0];",
"café naïve Ünïcode 日本語の文章 中文 한국어 русский текст 😀👩‍👧 e\u0301","aaaaaa bbbb ab abab ababab  x   y    z     w"]*20
texts=["","Hello the quick fox","It's DON'T 123456 \r\n\r\n x","日本語 中文 😀 e\u0301 \u00e9","<|begin|>hi<|end|> <|end|>there<tool>x</tool>","aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","    \n\n\n   \t\t x  "]
atoms=[c for t in corpus[:3] for c in t.split(" ")]+[" ","  ","\n"]
texts+=["".join(rng.choice(atoms) for _ in range(rng.randint(1,30))) for _ in range(60)]
out=[]
for name,pre,norm,ign,bos in [("gpt-2",p.ByteLevel(add_prefix_space=False),None,False,False),("smollm",p.Sequence([p.Digits(individual_digits=True),p.ByteLevel(add_prefix_space=False)]),None,False,False),
  ("llama-bpe",p.Sequence([p.Split(Regex(LL),"isolated"),p.ByteLevel(add_prefix_space=False,use_regex=False)]),None,True,True),
  ("qwen2",p.Sequence([p.Split(Regex(QW),"isolated"),p.ByteLevel(add_prefix_space=False,use_regex=False)]),normalizers.NFC(),False,False)]:
    t=Tokenizer(models.BPE(ignore_merges=ign)); t.pre_tokenizer=pre; t.decoder=decoders.ByteLevel()
    if norm: t.normalizer=norm
    t.train_from_iterator(corpus,trainers.BpeTrainer(vocab_size=420,initial_alphabet=p.ByteLevel.alphabet(),show_progress=False))
    t.add_special_tokens([AddedToken("<|begin|>",special=True),AddedToken("<|end|>",special=True)])
    t.add_tokens([AddedToken("<tool>",normalized=False,special=False)])
    if bos: t.post_processor=processors.Sequence([processors.ByteLevel(trim_offsets=False),processors.TemplateProcessing(single="<|begin|> $A",pair="<|begin|> $A <|begin|> $B",special_tokens=[("<|begin|>",t.token_to_id("<|begin|>"))])])
    else: t.post_processor=processors.ByteLevel(trim_offsets=False)
    rows=[[x,t.encode(x,add_special_tokens=False).ids] for x in texts]
    out.append({"pre":name,"bos":bos,"file":json.loads(t.to_str()),"config":{"bos_token":"<|begin|>" if bos else None,"eos_token":{"content":"<|end|>"},"chat_template":"{{ messages }}"},"rows":rows})
json.dump(out,open("hf.json","w"),separators=(",",":"))
