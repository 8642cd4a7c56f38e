package assemble

import (
	"regexp"
	"strings"

	"github.com/yardmaster/yardmaster/raftstore"
)

// inside is what belongs in a trace and not in a sentence: how a call was carried,
// and which package speaks.
var inside = regexp.MustCompile(`rpc error: code = \w+ desc = |\b(?:raftstore|identity|agent|transport|server/control|server/hub|assemble): `)

// stranger is an error about a peer of another cluster as operators read it. Its
// kind is named after data folders, and this is about none.
func stranger(err error) string {
	return strings.TrimPrefix(Plain(err.Error()), raftstore.ErrOtherCluster.Error()+": ")
}

// Plain is an error's text as operators read it.
func Plain(text string) string { return inside.ReplaceAllString(text, "") }
