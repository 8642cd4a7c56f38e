package identity

import (
	"errors"
	"fmt"
)

// ErrNodeID means that a text cannot be a node id.
var ErrNodeID = errors.New("not a node id")

const maxNodeID = 63

// CheckNodeID tells whether id can name a node: at most 63 characters of a-z,
// 0-9, dot and hyphen, the first a letter or digit. Errors wrap ErrNodeID.
func CheckNodeID(id string) error {
	if len(id) == 0 || len(id) > maxNodeID {
		return fmt.Errorf("%w: %d characters, want 1 to %d", ErrNodeID, len(id), maxNodeID)
	}
	for i, c := range []byte(id) {
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '.' && c != '-') {
			return fmt.Errorf("%w: %q (a-z, 0-9, dot and hyphen, the first a letter or digit)", ErrNodeID, id)
		}
	}
	return nil
}
