package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// BlockTokens is how many tokens of the prompt one hash id of the Mooncake
// format covers, the last id perhaps fewer.
const BlockTokens unit.Tokens = 512

// MaxTokens is how many tokens a row's prompt, and its output, may have: more than any
// model's context, and little enough to be played.
const MaxTokens = 10 << 20

// Request is one row of a trace.
type Request struct {
	At     time.Duration // since the trace's start
	Input  unit.Tokens
	Output unit.Tokens
	Blocks []uint64 // ids of the prompt's blocks, prefix-chained
	// Session tells the conversation from others; 0 is unknown.
	Session uint64
}

// ErrFormat means a row that is not of the Mooncake format.
var ErrFormat = errors.New("not a row of a Mooncake trace")

const maxRow = 16 << 20

// Read reads all rows, and gives those that name no conversation the one that they
// seem to go on. Errors wrap ErrFormat and name the line.
func Read(r io.Reader) ([]Request, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxRow)
	var out []Request
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		row, err := parse(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	converse(out)
	return out, nil
}

func parse(line []byte) (Request, error) {
	var row struct {
		Timestamp *float64 `json:"timestamp"` // ms
		Input     *int64   `json:"input_length"`
		Output    *int64   `json:"output_length"`
		Hashes    []uint64 `json:"hash_ids"`
		Session   name     `json:"session"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if row.Timestamp == nil || row.Input == nil || row.Output == nil {
		return Request{}, fmt.Errorf("%w: timestamp, input_length and output_length are needed", ErrFormat)
	}
	if *row.Input < 0 || *row.Output < 0 || !(*row.Timestamp >= 0 && *row.Timestamp < 1e15) {
		return Request{}, fmt.Errorf("%w: a negative or absurd number", ErrFormat)
	}
	if *row.Input > MaxTokens || *row.Output > MaxTokens {
		return Request{}, fmt.Errorf("%w: a prompt of %d and an output of %d tokens; each has at most %d", ErrFormat, *row.Input, *row.Output, MaxTokens)
	}
	return Request{
		At:    time.Duration(*row.Timestamp * float64(time.Millisecond)),
		Input: unit.Tokens(*row.Input), Output: unit.Tokens(*row.Output), Blocks: row.Hashes, Session: row.Session.hash,
	}, nil
}
