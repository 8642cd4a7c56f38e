package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

const (
	adminTimeout = 20 * time.Second // of a change; the API bounds its own work below
	lookTimeout  = 6 * time.Second  // of a question, which asks other nodes for 1.5 s at most
	pushTimeout  = 70 * time.Second // of an upload, which is tried before it is kept
	maxAnswer    = 4 << 20          // bytes
)

// adminClient calls one node's admin API.
type adminClient struct {
	base string // without a slash at its end
	http *http.Client
}

// adminFlag puts --admin on a command.
func adminFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "admin", "", "admin API of a node, an address or URL; the default is gateway.admin")
}

// adminAt is a client of the API at address, or where the settings say.
func (a *app) adminAt(address string) (*adminClient, error) {
	if address == "" {
		e, err := a.load(nil)
		if err != nil {
			return nil, err
		}
		if address = e.Config.Gateway.Admin; address == "" {
			return nil, usage(errors.New("gateway.admin is empty: say with --admin where a node's admin API is"))
		}
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, usage(fmt.Errorf("--admin %q is not an address such as 127.0.0.1:8091", address))
	}
	return &adminClient{base: "http://" + u.Host, http: &http.Client{Transport: &http.Transport{
		Proxy: nil, DisableKeepAlives: true, ExpectContinueTimeout: 5 * time.Second,
	}}}, nil
}

// adminError is the API's own word of what went wrong.
type adminError struct {
	status  int
	code    string
	message string
}

// Error is the API's sentence.
func (e *adminError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("status %d", e.status)
	}
	return e.message
}

// exit is the exit code that the fault means.
func (e *adminError) exit() int {
	switch e.code {
	case "not_found", "no_gateway", "no_cluster", "no_policies", "no_scale", "no_quotas":
		return exitNotFound
	case "no_leader", "timeout":
		return exitUnreachable
	case "invalid":
		return exitUsage
	default:
		return exitRuntime
	}
}

// next is what the user can do.
func (e *adminError) next() string {
	switch e.code {
	case "no_leader", "timeout":
		return "changes need a majority of the planners: `yardmaster cluster status` shows who answers; start those that do not, " +
			"and if they are lost for good see `yardmaster cluster recover --help`"
	case "uncertain":
		return "`yardmaster cluster status` shows whether it happened"
	case "conflict":
		return "somebody changed it meanwhile: `yardmaster policy list` shows how it stands"
	case "pinned":
		return "`yardmaster policy unpin` lets it be changed"
	case "bound":
		return "`yardmaster policy list` shows where; bind another there first"
	case "no_cluster":
		return "say with --admin where a planner's admin API is"
	default:
		return ""
	}
}

// stream sends a request and returns the open answer when its status is good or
// allowed. The caller closes its body.
func (c *adminClient) stream(ctx context.Context, method, path string, body io.Reader, allowed ...int) (*http.Response, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if f, ok := body.(*os.File); ok {
		if about, err := f.Stat(); err == nil && about.Mode().IsRegular() {
			req.ContentLength = about.Size()         // so that a node without room can say so at once,
			req.Header.Set("Expect", "100-continue") // and be heard: not while it is sent
		}
	}
	return c.send(req, allowed...)
}

// request makes one that may change something.
func (c *adminClient) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, usage(err)
	}
	req.Header.Set(admin.Intent, "1")
	return req, nil
}

// send sends a request; see stream.
func (c *adminClient) send(req *http.Request, allowed ...int) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		if fault, ok := errors.AsType[*url.Error](err); ok {
			err = fault.Err // the URL is ours, and the operator knows the address
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("it took the connection and said nothing in time; it hangs")
		}
		return nil, &codedError{exitUnreachable, fmt.Errorf("no node answers at %s; --admin names another: %w", c.base, err)}
	}
	if resp.StatusCode < 300 || slices.Contains(allowed, resp.StatusCode) {
		return resp, nil
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	fault := &adminError{status: resp.StatusCode}
	var told admin.Fault
	if text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err == nil && json.Unmarshal(text, &told) == nil {
		fault.code, fault.message = told.Error.Code, told.Error.Message
	}
	return nil, fault
}

// call sends in as JSON, if it is not nil, and reads the answer into out.
func (c *adminClient) call(ctx context.Context, method, path string, in, out any, allowed ...int) error {
	limit := adminTimeout
	if method == http.MethodGet {
		limit = lookTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body := io.Reader(http.NoBody)
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	resp, err := c.stream(ctx, method, path, body, allowed...)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the node's answer broke off: %w", err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("the node's answer is not understood; is it of another release? %w", err)
	}
	return nil
}
