package blob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
)

const (
	// Piece is how much of a blob is sent at once.
	Piece = 256 << 10
	// pieceTime is how long a piece may take.
	pieceTime = 5 * time.Second
	// wholeTime is how long a blob may take, from one source.
	wholeTime = 30 * time.Second
)

// ErrFalse means that a source gave bytes that are not the blob's.
var ErrFalse = errors.New("bytes are not what was asked for")

// Source is a node that may hold a blob.
type Source interface {
	// Piece returns the blob's size and a piece of it. Errors wrap ErrMissing if the
	// node does not hold it.
	Piece(ctx context.Context, d Digest, offset int64) (size int64, data []byte, err error)
}

// PieceOf is the piece of a blob that begins at offset, as a Source gives it. It is
// empty beyond the end.
func PieceOf(data []byte, offset int64) []byte {
	if offset < 0 || offset >= int64(len(data)) {
		return nil
	}
	return data[offset:min(offset+Piece, int64(len(data)))]
}

// Fetch takes a blob of that size from a source. Each piece has a deadline, and so
// has the whole. Errors wrap ErrMissing, ErrFalse, ErrSize, ctx's or the source's.
func Fetch(ctx context.Context, from Source, d Digest, size int64) ([]byte, error) {
	if size < 1 || size > MaxBlob {
		return nil, fmt.Errorf("%w: %d bytes; it may have up to %d", ErrSize, size, MaxBlob)
	}
	ctx, cancel := context.WithTimeout(ctx, wholeTime)
	defer cancel()
	data := make([]byte, 0, min(size, Piece)) // grows by what arrives
	for int64(len(data)) < size {
		piece, err := fetchPiece(ctx, from, d, size, int64(len(data)))
		if err != nil {
			return nil, err
		}
		data = append(data, piece...)
	}
	if rollout.DigestOf(data) != d {
		return nil, fmt.Errorf("%w: %d bytes of another digest", ErrFalse, size)
	}
	return data, nil
}

func fetchPiece(ctx context.Context, from Source, d Digest, size, offset int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pieceTime)
	defer cancel()
	total, piece, err := from.Piece(ctx, d, offset)
	switch rest := size - offset; {
	case err != nil:
		return nil, fmt.Errorf("after %d of %d bytes: %w", offset, size, err)
	case total != size:
		return nil, fmt.Errorf("%w: a blob of %d bytes, not %d", ErrFalse, total, size)
	case int64(len(piece)) != min(rest, Piece):
		return nil, fmt.Errorf("%w: a piece of %d bytes at %d of %d", ErrFalse, len(piece), offset, size)
	}
	return piece, nil
}
