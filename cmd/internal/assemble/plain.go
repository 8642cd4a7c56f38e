package assemble

import "regexp"

// inside is what belongs in a trace and not in a sentence: how a call was carried,
// and which package speaks.
var inside = regexp.MustCompile(`rpc error: code = \w+ desc = |\b(?:raftstore|identity|agent|transport|server/control|server/hub|assemble): `)

// Plain is an error's text as operators read it.
func Plain(text string) string { return inside.ReplaceAllString(text, "") }
