package main

import (
	_ "embed" // the plays
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

//go:embed plays.yaml
var playsYAML []byte

// playText is what an engine does in a case, and what a client should see.
// Suites get both as JSON; a script in JSON is one in YAML too.
type playText struct {
	About  string         `json:"about"`
	Expect map[string]any `json:"expect,omitempty"`
	Script map[string]any `json:"script,omitempty"`
	// Stream is an event stream. It becomes the script's first rule's answer, as
	// the bytes of a whole connection, and Wire says what is where in them.
	Stream string `json:"stream,omitempty"`
	Wire   *wire  `json:"wire,omitempty"`
}

// wire describes the bytes of a response.
type wire struct {
	Bytes int `json:"bytes"`
	// Error is the offset up to which a cut must raise an error: before it the end
	// marker is not whole. From Whole on the stream is complete.
	Error int `json:"error"`
	Whole int `json:"whole"`
}

func readPlays() (map[string]*playText, error) {
	var plays map[string]*playText
	if err := yaml.UnmarshalWithOptions(playsYAML, &plays, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("plays.yaml: %w", err)
	}
	for name, p := range plays {
		if p.Stream != "" {
			if err := p.put(); err != nil {
				return nil, fmt.Errorf("plays.yaml: %s: %w", name, err)
			}
		}
		if err := p.check(name); err != nil {
			return nil, err
		}
	}
	return plays, nil
}

// check parses the scripts as the engine will.
func (p *playText) check(name string) error {
	var scripts []any
	if p.Script != nil {
		scripts = append(scripts, p.Script)
	}
	if table, ok := p.Expect["table"].([]any); ok {
		for _, row := range table {
			if row, ok := row.(map[string]any); ok && row["script"] != nil {
				scripts = append(scripts, row["script"])
			}
		}
	}
	for _, s := range scripts {
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("plays.yaml: %s: %w", name, err)
		}
		if _, err := scripted.ParseScript(name, text); err != nil {
			return fmt.Errorf("plays.yaml: %w", err)
		}
	}
	return nil
}

const endMarker = "data: [DONE]"

var errNoRule = errors.New("a stream needs a first rule with do")

// put renders the stream as a chunked response and makes it the first rule's.
func (p *playText) put() error {
	rules, _ := p.Script["rules"].([]any)
	if len(rules) == 0 {
		return errNoRule
	}
	rule, _ := rules[0].(map[string]any)
	do, ok := rule["do"].(map[string]any)
	if !ok {
		return errNoRule
	}
	text, w := chunked(p.Stream)
	do["raw"] = map[string]any{"text": text}
	p.Wire = &w
	return nil
}

// chunked is stream as an HTTP/1.1 response, one chunk an event.
func chunked(stream string) (string, wire) {
	var b strings.Builder
	b.WriteString("HTTP/1.1 " + strconv.Itoa(http.StatusOK) + " OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	var w wire
	for event := range strings.SplitAfterSeq(stream, "\n\n") {
		if event == "" {
			continue
		}
		b.WriteString(strconv.FormatInt(int64(len(event)), 16) + "\r\n")
		if strings.HasPrefix(event, endMarker) {
			w.Error = b.Len() + len(endMarker)
			w.Whole = b.Len() + len(event)
		}
		b.WriteString(event + "\r\n")
	}
	b.WriteString("0\r\n\r\n")
	w.Bytes = b.Len()
	return b.String(), w
}
