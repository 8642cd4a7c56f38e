package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"github.com/tinylib/msgp/msgp"
)

// ErrMalformed means bytes that are no batch of events. What Decode has read of
// them by then is not to be used.
var ErrMalformed = errors.New("malformed KV events")

// maxNames bounds the strings a Batch remembers between messages.
const maxNames = 256

// Decode reads a message's payload. Errors wrap ErrMalformed and give the offset.
// The payload is not kept.
func (b *Batch) Decode(payload []byte) error {
	b.Time, b.Rank, b.Skipped = 0, NoRank, 0
	b.Events, b.hashes, b.tokens, b.spans = b.Events[:0], b.hashes[:0], b.tokens[:0], b.spans[:0]
	d := decoder{batch: b, rest: payload, size: len(payload)}
	if err := d.outer(); err != nil {
		b.Events = b.Events[:0]
		return fmt.Errorf("%w at byte %d of %d: %w", ErrMalformed, d.size-len(d.rest), d.size, err)
	}
	for i := range b.Events {
		s := b.spans[i]
		b.Events[i].Hashes = b.hashes[s.hash0:s.hash1:s.hash1]
		b.Events[i].Tokens = b.tokens[s.token0:s.token1:s.token1]
	}
	return nil
}

// decoder walks one payload.
type decoder struct {
	batch *Batch
	rest  []byte
	size  int
}

// What can be wrong besides what msgp finds.
var (
	errType     = errors.New("unexpected type")
	errCount    = errors.New("more elements than bytes")
	errTrailing = errors.New("bytes after the batch")
	errTag      = errors.New("event without a tag")
)

// outer reads the batch, an array or a map.
func (d *decoder) outer() error {
	err := errType
	if t := msgp.NextType(d.rest); t == msgp.ArrayType {
		err = d.outerArray()
	} else if t == msgp.MapType {
		err = d.outerMap()
	}
	if err == nil && len(d.rest) > 0 {
		return errTrailing
	}
	return err
}

func (d *decoder) outerMap() error {
	return d.eachKey(func(key []byte) error {
		switch string(key) {
		case "ts":
			return d.time()
		case "events":
			return d.events()
		case "data_parallel_rank":
			return d.rank()
		}
		return d.skip()
	})
}

func (d *decoder) outerArray() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	for i := range n {
		switch i {
		case 0:
			err = d.time()
		case 1:
			err = d.events()
		case 2:
			err = d.rank()
		default:
			err = d.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// array reads an array's length, which the bytes left must be able to hold.
func (d *decoder) array() (int, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(d.rest)
	if err != nil {
		return 0, err
	}
	if int(n) > len(rest) {
		return 0, errCount
	}
	d.rest = rest
	return int(n), nil
}

// eachKey reads a map, calling value for each text key; other keys are skipped.
func (d *decoder) eachKey(value func(key []byte) error) error {
	n, rest, err := msgp.ReadMapHeaderBytes(d.rest)
	if err != nil {
		return err
	}
	if int64(n)*2 > int64(len(rest)) {
		return errCount
	}
	d.rest = rest
	for range n {
		key, ok, err := d.text()
		if err != nil {
			return err
		}
		if !ok {
			key = nil
		}
		if err := value(key); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) skip() error {
	rest, err := msgp.Skip(d.rest)
	if err != nil {
		return err
	}
	d.rest = rest
	return nil
}

// text reads a string without copying it; anything else is skipped and ok false.
func (d *decoder) text() (s []byte, ok bool, err error) {
	if msgp.NextType(d.rest) != msgp.StrType {
		return nil, false, d.skip()
	}
	s, rest, err := msgp.ReadStringZC(d.rest)
	if err != nil {
		return nil, false, err
	}
	d.rest = rest
	return s, true, nil
}

// name reads a string, remembering it for the next time; "" for anything else.
func (d *decoder) name() (string, error) {
	s, ok, err := d.text()
	if err != nil || !ok || len(s) == 0 {
		return "", err
	}
	if known, ok := d.batch.names[string(s)]; ok {
		return known, nil
	}
	out := string(s)
	if d.batch.names == nil {
		d.batch.names = map[string]string{}
	}
	if len(d.batch.names) < maxNames && len(s) <= maxNames {
		d.batch.names[out] = out
	}
	return out, nil
}

// integer reads an integer of either sign as 64 bits. ok is false, and the
// element skipped, when it is none.
func (d *decoder) integer() (v uint64, ok bool, err error) {
	t := msgp.NextType(d.rest)
	if t != msgp.UintType && t != msgp.IntType {
		return 0, false, d.skip()
	}
	var rest []byte
	if t == msgp.UintType {
		v, rest, err = msgp.ReadUint64Bytes(d.rest)
	} else {
		var i int64
		i, rest, err = msgp.ReadInt64Bytes(d.rest)
		v = uint64(i)
	}
	if err != nil {
		return 0, false, err
	}
	d.rest = rest
	return v, true, nil
}

// time reads seconds, a float or an integer.
func (d *decoder) time() error {
	t := msgp.NextType(d.rest)
	if t != msgp.Float64Type && t != msgp.Float32Type {
		v, _, err := d.integer()
		d.batch.Time = float64(v)
		return err
	}
	v, rest, err := msgp.ReadFloat64Bytes(d.rest) // takes both widths
	if err != nil {
		return err
	}
	d.batch.Time, d.rest = v, rest
	return nil
}

func (d *decoder) rank() error {
	v, ok, err := d.integer()
	if ok && v < 1<<31 {
		d.batch.Rank = int(v)
	}
	return err
}

func (d *decoder) events() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	for range n {
		if err := d.event(); err != nil {
			return err
		}
	}
	return nil
}

// event reads one event, of a known kind or not.
func (d *decoder) event() error {
	b := d.batch
	e := Event{Group: NoGroup}
	s := span{len(b.hashes), len(b.hashes), len(b.tokens), len(b.tokens)}
	err := errTag
	if t := msgp.NextType(d.rest); t == msgp.ArrayType {
		err = d.positional(&e, &s)
	} else if t == msgp.MapType {
		err = d.named(&e, &s)
	}
	if err != nil {
		return err
	}
	if e.Kind == 0 {
		b.Skipped++
		return nil
	}
	b.Events = append(b.Events, e)
	b.spans = append(b.spans, s)
	return nil
}

// kindOf is the kind for a tag, 0 when it is unknown.
func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return 0
}

// storedFields and removedFields are the names of the positions behind the tag.
func storedFields() []string {
	return []string{
		"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind",
	}
}

func removedFields() []string { return []string{"block_hashes", "medium", "group_idx"} }

// positional reads [tag, field, ...]; missing fields keep their defaults.
func (d *decoder) positional(e *Event, s *span) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	if n == 0 {
		return errTag
	}
	tag, ok, err := d.text()
	if err != nil {
		return err
	}
	if !ok {
		return errTag
	}
	e.Kind = kindOf(tag)
	var fields []string
	switch e.Kind {
	case Stored:
		fields = storedFields()
	case Removed:
		fields = removedFields()
	case Cleared:
	}
	for i := range n - 1 {
		if i >= len(fields) {
			err = d.skip()
		} else {
			err = d.field(fields[i], e, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// named reads {"type": tag, field: value, ...} in any order.
func (d *decoder) named(e *Event, s *span) error {
	return d.eachKey(func(key []byte) error {
		if string(key) != "type" {
			return d.field(string(key), e, s)
		}
		tag, _, err := d.text()
		e.Kind = kindOf(tag)
		return err
	})
}

// field reads one field by name. An unknown one is skipped, as is a known one
// of a type that no engine sends, unless losing it would lose blocks.
func (d *decoder) field(name string, e *Event, s *span) (err error) {
	switch name {
	case "block_hashes":
		s.hash0 = len(d.batch.hashes)
		err = d.hashes()
		s.hash1 = len(d.batch.hashes)
	case "parent_block_hash":
		if msgp.NextType(d.rest) == msgp.NilType {
			return d.skip()
		}
		e.Parent, err = d.hash()
	case "token_ids":
		s.token0 = len(d.batch.tokens)
		err = d.tokenIDs()
		s.token1 = len(d.batch.tokens)
	case "block_size":
		var v uint64
		if v, _, err = d.integer(); v < 1<<31 {
			e.BlockTokens = int(v)
		}
	case "lora_id":
		var v uint64
		v, _, err = d.integer()
		e.LoRAID = int64(v)
	case "medium":
		e.Medium, err = d.name()
	case "lora_name":
		// One engine has its cache salt here, in a map.
		if msgp.NextType(d.rest) == msgp.MapType {
			return d.salt(e)
		}
		e.LoRA, err = d.name()
	case "cache_salt":
		e.Salt, err = d.name()
		e.Extra = e.Extra || e.Salt != ""
	case "extra_keys":
		err = d.extraKeys(e)
	case "group_idx":
		var v uint64
		var ok bool
		if v, ok, err = d.integer(); ok && v < 1<<31 {
			e.Group = int(v)
		}
	case "kv_cache_spec_kind":
		e.Spec, err = d.name()
	default:
		err = d.skip()
	}
	return err
}

func (d *decoder) salt(e *Event) error {
	return d.eachKey(func(key []byte) error {
		if string(key) != "cache_salt" {
			return d.skip()
		}
		return d.field("cache_salt", e, nil)
	})
}

// hashes reads a list of block hashes; nil is none.
func (d *decoder) hashes() error {
	if msgp.NextType(d.rest) == msgp.NilType {
		return d.skip()
	}
	n, err := d.array()
	if err != nil {
		return err
	}
	for range n {
		h, err := d.hash()
		if err != nil {
			return err
		}
		d.batch.hashes = append(d.batch.hashes, h)
	}
	return nil
}

// hash reads a block hash of any era.
func (d *decoder) hash() (uint64, error) {
	t := msgp.NextType(d.rest)
	if t == msgp.IntType || t == msgp.UintType {
		v, _, err := d.integer()
		return v, err
	}
	if t == msgp.StrType {
		v, _, err := d.text()
		return lastEight(v), err
	}
	if t != msgp.BinType {
		return 0, errType
	}
	v, rest, err := msgp.ReadBytesZC(d.rest)
	if err != nil {
		return 0, err
	}
	d.rest = rest
	return lastEight(v), nil
}

// lastEight is the last eight bytes of b, big-endian.
func lastEight(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

func (d *decoder) tokenIDs() error {
	if msgp.NextType(d.rest) == msgp.NilType {
		return d.skip()
	}
	n, err := d.array()
	if err != nil {
		return err
	}
	for range n {
		id, err := d.tokenID(false)
		if err != nil {
			return err
		}
		d.batch.tokens = append(d.batch.tokens, id)
	}
	return nil
}

// tokenID reads one id: a number, a text, or the first of a pair of these.
func (d *decoder) tokenID(inPair bool) (uint32, error) {
	switch t := msgp.NextType(d.rest); {
	case t == msgp.IntType || t == msgp.UintType:
		v, _, err := d.integer()
		return uint32(v), err
	case t == msgp.StrType:
		s, _, err := d.text()
		if n, bad := strconv.ParseUint(string(s), 10, 32); bad == nil {
			return uint32(n), err
		}
		return uint32(xxhash.Sum64(s)), err
	case t == msgp.ArrayType && !inPair:
		n, err := d.array()
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, errType
		}
		id, err := d.tokenID(true)
		for range n - 1 {
			if err == nil {
				err = d.skip()
			}
		}
		return id, err
	default:
		return 0, errType
	}
}

// extraKeys notes whether any block's hash covers more than its tokens.
func (d *decoder) extraKeys(e *Event) error {
	if msgp.NextType(d.rest) != msgp.ArrayType {
		return d.skip()
	}
	n, err := d.array()
	if err != nil {
		return err
	}
	for i := range n {
		t := msgp.NextType(d.rest)
		if t == msgp.ArrayType {
			err = d.blockKeys(e, i == 0)
		} else {
			e.Extra = e.Extra || t != msgp.NilType
			err = d.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blockKeys reads what one block's hash covers besides its tokens.
func (d *decoder) blockKeys(e *Event, first bool) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	e.Extra = e.Extra || n > 0
	if first && n == 1 {
		e.ExtraKey, err = d.name()
		return err
	}
	for range n {
		if err := d.skip(); err != nil {
			return err
		}
	}
	return nil
}
