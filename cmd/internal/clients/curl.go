package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// curlCases are what curl users, and clients whose source is not in reach, do.
func curlCases(ctx context.Context, p *place) []outcome {
	if _, err := exec.LookPath("curl"); err != nil {
		return []outcome{{Case: "curl", Status: skipped, Detail: "curl is not here"}}
	}
	var outcomes []outcome
	for _, c := range []struct {
		name string
		run  func(context.Context, *place) error
	}{
		{"expect_continue", expectContinue},
		{"bearer_models", bearerModels},
		{"head_and_options", headAndOptions},
		{"plain_stream", plainStream},
		{"http2_upgrade", upgrade},
		{"no_such_route", noSuchRoute},
		{"keep_alive", keepAlive},
	} {
		began := time.Now()
		o := outcome{Case: c.name, Status: passed}
		if err := c.run(ctx, p); err != nil {
			o.Status, o.Detail = failed, err.Error()
		}
		o.Millis = float64(time.Since(began).Microseconds()) / 1000
		outcomes = append(outcomes, o)
	}
	return outcomes
}

// answer is what curl printed: every response's head, and the body.
type answer struct {
	status string // of the last response
	heads  string // lower case
	body   string
}

// curl runs curl on path below the gateway's root.
func curl(ctx context.Context, base, path, stdin string, args ...string) (answer, error) {
	const mark = "\n@head@\n"
	cmd := exec.CommandContext(ctx, "curl", append([]string{
		"--silent", "--show-error", "--max-time", "10", "--noproxy", "*", "--dump-header", "/dev/stderr", "--write-out", mark + "%{http_code}",
	}, append(args, base+path)...)...)
	var out, heads strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &heads
	if err := cmd.Run(); err != nil {
		return answer{}, fmt.Errorf("curl %s: %w: %s", path, err, heads.String())
	}
	body, status, _ := strings.Cut(out.String(), mark)
	return answer{status: status, heads: strings.ToLower(heads.String()), body: body}, nil
}

func (a answer) wants(status string, heads ...string) error {
	if a.status != status {
		return fmt.Errorf("status %s instead of %s: %.300s", a.status, status, a.body)
	}
	for _, h := range heads {
		if !strings.Contains(a.heads, h) {
			return fmt.Errorf("no %q in %q", h, a.heads)
		}
	}
	return nil
}

func chatBody(extra string) string {
	return `{"model":"plain","messages":[{"role":"user","content":"What does a yardmaster do?"}],"max_tokens":4` + extra + `}`
}

var jsonPost = []string{"--header", "Content-Type: application/json", "--data-binary", "@-"}

// expectContinue sends a body only after 100, and finds one too large refused
// without sending it.
func expectContinue(ctx context.Context, p *place) error {
	args := append([]string{"--header", "Expect: 100-continue", "--expect100-timeout", "5"}, jsonPost...)
	pad := func(n int) string { return chatBody(`,"pad":"` + strings.Repeat("x", n) + `"`) }
	began := time.Now()
	a, err := curl(ctx, p.Gateway, "/chat/completions", pad(200_000), args...)
	if err != nil {
		return err
	}
	if err := a.wants("200", "100 continue"); err != nil {
		return err
	}
	if took := time.Since(began); took > 4*time.Second {
		return fmt.Errorf("curl waited %v for the 100", took)
	}
	a, err = curl(ctx, p.Strict, "/chat/completions", pad(200_000), args...)
	if err != nil {
		return err
	}
	if strings.Contains(a.heads, "100 continue") {
		return fmt.Errorf("a body over the limit was asked for: %q", a.heads)
	}
	return a.wants("413")
}

// bearerModels is how Open WebUI verifies a connection.
func bearerModels(ctx context.Context, p *place) error {
	a, err := curl(ctx, p.Gateway, "/models", "", "--header", "Authorization: Bearer 0p3n-w3bui", "--header", "Content-Type: application/json")
	if err != nil {
		return err
	}
	if err := a.wants("200", "application/json"); err != nil {
		return err
	}
	if !strings.Contains(a.body, `"id":"plain"`) || strings.Contains(a.body, "0p3n-w3bui") {
		return fmt.Errorf("answered %s", a.body)
	}
	return nil
}

// keepAlive: requests of every kind share one connection.
func keepAlive(ctx context.Context, p *place) error {
	post := func(args ...string) []string {
		return append([]string{"--header", "Content-Type: application/json", "--data-binary", chatBody(""), p.Gateway + "/chat/completions"}, args...)
	}
	transfers := [][]string{
		{p.Gateway + "/models"},
		post(),
		{"--head", p.Gateway + "/models"},
		post("--header", "Transfer-Encoding: chunked"),
		post("--header", "Expect: 100-continue", "--expect100-timeout", "5"),
		{p.Gateway + "/no/such/route"},
		{"--request", "DELETE", p.Gateway + "/models"},
		post(),
	}
	var args []string
	for i, t := range transfers {
		if i > 0 {
			args = append(args, "--next")
		}
		args = append(args, "--silent", "--show-error", "--max-time", "10", "--noproxy", "*", "--output", "/dev/null", "--write-out", "%{http_code} %{num_connects}\n")
		args = append(args, t...)
	}
	out, err := exec.CommandContext(ctx, "curl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("curl: %w: %s", err, out)
	}
	want := "200 1\n200 0\n200 0\n200 0\n200 0\n404 0\n405 0\n200 0\n"
	if got := string(out); got != want {
		return fmt.Errorf("statuses and new connections: %q instead of %q", got, want)
	}
	return nil
}

// headAndOptions: no method crashes, none opens the API to web pages.
func headAndOptions(ctx context.Context, p *place) error {
	for _, c := range []struct {
		args   []string
		path   string
		status string
	}{
		{[]string{"--head"}, "/models", "200 or 405"},
		{[]string{"--head"}, "/chat/completions", "405"},
		{[]string{"--request", "OPTIONS", "--header", "Origin: http://example.com", "--header", "Access-Control-Request-Method: POST"}, "/chat/completions", "405"},
		{[]string{"--request", "OPTIONS", "--header", "Origin: http://example.com"}, "/models", "405"},
		{[]string{"--request", "DELETE"}, "/models", "405"},
		{[]string{"--header", "Origin: http://example.com"}, "/models", "200"},
	} {
		a, err := curl(ctx, p.Gateway, c.path, "", c.args...)
		if err != nil {
			return err
		}
		if !strings.Contains(c.status, a.status) {
			return fmt.Errorf("%v %s: status %s instead of %s", c.args, c.path, a.status, c.status)
		}
		if a.status == "405" && !strings.Contains(a.heads, "\nallow:") {
			return fmt.Errorf("%v %s: 405 without Allow: %q", c.args, c.path, a.heads)
		}
		if strings.Contains(a.heads, "access-control-") {
			return fmt.Errorf("%v %s opens the API to web pages: %q", c.args, c.path, a.heads)
		}
	}
	return nil
}

// plainStream is a stream as a terminal sees it: never compressed, never
// buffered by a proxy.
func plainStream(ctx context.Context, p *place) error {
	a, err := curl(ctx, p.Gateway, "/chat/completions", chatBody(`,"stream":true`), append([]string{"--no-buffer", "--header", "Accept-Encoding: gzip, br"}, jsonPost...)...)
	if err != nil {
		return err
	}
	if err := a.wants("200", "text/event-stream", "x-accel-buffering: no", "cache-control: no-cache", "x-request-id:"); err != nil {
		return err
	}
	if strings.Contains(a.heads, "content-encoding") || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		return fmt.Errorf("heads %q, body %q", a.heads, a.body)
	}
	return nil
}

// upgrade offers HTTP/2 over plain text, as curl --http2 does; being served over
// HTTP/1.1 is an answer.
func upgrade(ctx context.Context, p *place) error {
	a, err := curl(ctx, p.Gateway, "/chat/completions", chatBody(""), append([]string{"--http2"}, jsonPost...)...)
	if err != nil {
		return err
	}
	return a.wants("200")
}

func noSuchRoute(ctx context.Context, p *place) error {
	a, err := curl(ctx, p.Gateway, "/nothing", "{}", jsonPost...)
	if err != nil {
		return err
	}
	if err := a.wants("404", "x-request-id:"); err != nil {
		return err
	}
	if !strings.Contains(a.body, `"code":"route_not_found"`) {
		return fmt.Errorf("answered %s", a.body)
	}
	return nil
}
