package fleet

import (
	"errors"
	"fmt"
)

// ErrNodeID means that a text cannot be the name of a node.
var ErrNodeID = errors.New("not a node id")

// MaxNodeID is the length of the longest node id.
const MaxNodeID = 63

// CheckNodeID tells whether id can name a node, a planner or gateway: 1 to 63
// characters of a-z, 0-9, dot and hyphen, the first a letter or digit. A
// certificate's DNS name can hold that. Errors wrap ErrNodeID.
func CheckNodeID(id string) error {
	if len(id) == 0 || len(id) > MaxNodeID {
		return fmt.Errorf("%w: %d characters, want 1 to %d", ErrNodeID, len(id), MaxNodeID)
	}
	for i, c := range []byte(id) {
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '.' && c != '-') {
			return fmt.Errorf("%w: %q (a-z, 0-9, dot and hyphen, the first a letter or digit)", ErrNodeID, id)
		}
	}
	return nil
}
