package native

import (
	"fmt"
	"strings"
)

// Named is the policy of that name among all, of which there are two at least. The
// error of another name lists all; use says what for: "routing".
func Named[P interface{ Name() string }](use, name string, all []P) (P, error) {
	names := make([]string, len(all))
	for i, p := range all {
		if names[i] = p.Name(); names[i] == name {
			return p, nil
		}
	}
	var none P
	last := len(names) - 1
	return none, fmt.Errorf("unknown %s policy %q: use %s or %s", use, name, strings.Join(names[:last], ", "), names[last])
}
