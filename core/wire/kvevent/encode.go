package kvevent

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"
)

// HashForm is how an engine writes block hashes.
type HashForm uint8

// The forms.
const (
	Unsigned HashForm = iota // integers, as vLLM by default
	Signed                   // integers, the upper half negative, as SGLang
	Binary                   // eight bytes
)

// Format is the dialect of an engine and era.
type Format struct {
	Array    bool // events as positional arrays, as before June 2026
	OuterMap bool // the batch itself as a map
	Hashes   HashForm
}

// Append writes b's payload in format f behind dst. Slices and strings of b are
// only read.
func Append(dst []byte, b *Batch, f Format) []byte {
	ranked := b.Rank >= 0
	if f.OuterMap {
		dst = msgp.AppendMapHeader(dst, 2+count(ranked))
		dst = msgp.AppendFloat64(msgp.AppendString(dst, "ts"), b.Time)
		dst = f.events(msgp.AppendString(dst, "events"), b.Events)
		if ranked {
			dst = msgp.AppendUint64(msgp.AppendString(dst, "data_parallel_rank"), uint64(b.Rank))
		}
		return dst
	}
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = f.events(msgp.AppendFloat64(dst, b.Time), b.Events)
	if ranked {
		return msgp.AppendUint64(dst, uint64(b.Rank))
	}
	return msgp.AppendNil(dst)
}

func (f Format) events(dst []byte, events []Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		if f.Array {
			dst = f.positional(dst, &events[i])
		} else {
			dst = f.named(dst, &events[i])
		}
	}
	return dst
}

// positional writes [tag, field, ...].
func (f Format) positional(dst []byte, e *Event) []byte {
	grouped := e.Group >= 0
	switch e.Kind {
	case Stored:
		n := 9 + count(grouped)
		if grouped && e.Spec != "" {
			n++
		}
		dst = msgp.AppendArrayHeader(dst, n)
		dst = f.hashes(msgp.AppendString(dst, "BlockStored"), e.Hashes)
		dst = appendTokens(f.parent(dst, e.Parent), e.Tokens)
		dst = msgp.AppendUint64(dst, uint64(e.BlockTokens))
		dst = appendText(appendText(appendLoRAID(dst, e.LoRAID), e.Medium), e.LoRA)
		dst = appendExtra(dst, e)
		if grouped {
			dst = msgp.AppendUint64(dst, uint64(e.Group))
			if e.Spec != "" {
				dst = msgp.AppendString(dst, e.Spec)
			}
		}
		return dst
	case Removed:
		dst = msgp.AppendArrayHeader(dst, 3+count(grouped))
		dst = f.hashes(msgp.AppendString(dst, "BlockRemoved"), e.Hashes)
		dst = appendText(dst, e.Medium)
		if grouped {
			dst = msgp.AppendUint64(dst, uint64(e.Group))
		}
		return dst
	case Cleared:
	}
	return msgp.AppendString(msgp.AppendArrayHeader(dst, 1), "AllBlocksCleared")
}

// named writes {"type": tag, field: value, ...}.
func (f Format) named(dst []byte, e *Event) []byte {
	tag := func(n uint32, tag string) []byte {
		return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(dst, n), "type"), tag)
	}
	grouped := e.Group >= 0
	switch e.Kind {
	case Stored:
		dst = tag(9+count(grouped)+count(e.Spec != "")+count(e.Salt != ""), "BlockStored")
		dst = f.hashes(msgp.AppendString(dst, "block_hashes"), e.Hashes)
		dst = f.parent(msgp.AppendString(dst, "parent_block_hash"), e.Parent)
		dst = appendTokens(msgp.AppendString(dst, "token_ids"), e.Tokens)
		dst = msgp.AppendUint64(msgp.AppendString(dst, "block_size"), uint64(e.BlockTokens))
		dst = appendLoRAID(msgp.AppendString(dst, "lora_id"), e.LoRAID)
		dst = appendText(msgp.AppendString(dst, "medium"), e.Medium)
		dst = appendText(msgp.AppendString(dst, "lora_name"), e.LoRA)
		dst = appendExtra(msgp.AppendString(dst, "extra_keys"), e)
	case Removed:
		dst = tag(3+count(grouped), "BlockRemoved")
		dst = f.hashes(msgp.AppendString(dst, "block_hashes"), e.Hashes)
		dst = appendText(msgp.AppendString(dst, "medium"), e.Medium)
	case Cleared:
		return tag(1, "AllBlocksCleared")
	}
	if grouped {
		dst = msgp.AppendUint64(msgp.AppendString(dst, "group_idx"), uint64(e.Group))
	}
	if e.Kind == Stored && e.Spec != "" {
		dst = msgp.AppendString(msgp.AppendString(dst, "kv_cache_spec_kind"), e.Spec)
	}
	if e.Kind == Stored && e.Salt != "" {
		dst = msgp.AppendString(msgp.AppendString(dst, "cache_salt"), e.Salt)
	}
	return dst
}

func count(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (f Format) hashes(dst []byte, hashes []uint64) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = f.hash(dst, h)
	}
	return dst
}

func (f Format) hash(dst []byte, h uint64) []byte {
	switch f.Hashes {
	case Signed:
		return msgp.AppendInt64(dst, int64(h))
	case Binary:
		return binary.BigEndian.AppendUint64(msgp.AppendBytesHeader(dst, 8), h)
	case Unsigned:
	}
	return msgp.AppendUint64(dst, h)
}

func (f Format) parent(dst []byte, h uint64) []byte {
	if h == 0 {
		return msgp.AppendNil(dst)
	}
	return f.hash(dst, h)
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(tokens)))
	for _, t := range tokens {
		dst = msgp.AppendUint32(dst, t)
	}
	return dst
}

func appendText(dst []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, s)
}

func appendLoRAID(dst []byte, id int64) []byte {
	if id == 0 {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendInt64(dst, id)
}

// appendExtra writes one entry a block, of which only the first may be filled.
func appendExtra(dst []byte, e *Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Hashes)))
	for i := range e.Hashes {
		if e.Extra && i == 0 {
			dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 1), e.ExtraKey)
		} else {
			dst = msgp.AppendNil(dst)
		}
	}
	return dst
}
