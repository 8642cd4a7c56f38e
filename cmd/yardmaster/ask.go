package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/wire/eventstream"
)

// askTokens bounds the answer that `dev --ask` prints.
const askTokens = 96

// ask streams one answer to the terminal as it comes.
func (a *app) ask(ctx context.Context, url, model, question string) error {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": askTokens, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": question}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Yardmaster-Explain", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return errors.Join(fmt.Errorf("ask: status %d: %s", resp.StatusCode, gjson.GetBytes(text, "error.message").Str), err)
	}
	fmt.Fprintf(a.out, "> %s\n", question)
	if err := printStream(a.out, resp.Body); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	fmt.Fprintf(a.out, "\n\n(placed: %s)\n\n", resp.Header.Get("X-Yardmaster-Path"))
	return nil
}

var errTruncated = errors.New("the answer broke off")

// printStream prints the text of a chat stream. Only the end marker makes an
// answer whole.
func printStream(out io.Writer, stream io.Reader) error {
	reader := eventstream.NewReader(make([]byte, 0, 4096), maxAskEvent)
	for {
		err := reader.Fill(stream)
		for event, ok := reader.Next(); ok; event, ok = reader.Next() {
			if bytes.Equal(event.Data, []byte("[DONE]")) {
				return nil
			}
			if fault := gjson.GetBytes(event.Data, "error.message"); fault.Exists() {
				return fmt.Errorf("%w: %s", errTruncated, fault.Str)
			}
			fmt.Fprint(out, gjson.GetBytes(event.Data, "choices.0.delta.content").Str)
		}
		if errors.Is(err, io.EOF) {
			return errTruncated
		}
		if err != nil {
			return err
		}
	}
}

// maxAskEvent bounds one event of an answer.
const maxAskEvent = 1 << 20
