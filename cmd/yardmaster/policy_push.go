package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/builtin"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) policyPush() *cobra.Command {
	var address, keyFile string
	var unsigned bool
	var out output
	c := &cobra.Command{
		Use:   "push FILE",
		Short: "Upload a policy; it decides nothing before it is bound",
		Long: `Upload a policy to the cluster. The node that is asked checks it: signature,
structure, contract, and a trial in a process of its own; then a majority of the
planners keep it, and every node makes it ready. A refusal says which check failed
and why.

Planners take what one of their policy.trusted-key has signed. --key signs the
upload with the private key in that file (yardmaster policy keygen makes a pair);
--unsigned says that it is meant to have no signature, which only planners with
policy.allow-unsigned accept.

builtin:kv-cost in place of a file is the policy of that name that comes with the
program, in Wasm: to begin from on any cluster.`,
		Example: "  yardmaster policy push least-loaded.wasm --key team.key\n  yardmaster policy push least-loaded.wasm --unsigned\n  yardmaster policy push builtin:kv-cost --unsigned",
		Args:    operand("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			module, err := moduleAt(args[0])
			if err != nil {
				return err
			}
			signature, err := signatureOf(module, keyFile, unsigned)
			if err != nil {
				return err
			}
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			return a.push(c.Context(), client, module, signature, &out)
		},
	}
	c.Flags().StringVar(&keyFile, "key", "", "file with the private key that signs it")
	c.Flags().BoolVar(&unsigned, "unsigned", false, "upload it without a signature")
	adminFlag(c, &address)
	out.flag(c)
	return c
}

// moduleAt reads a policy's file, whose length is bounded, or takes one that comes
// with the program.
func moduleAt(path string) ([]byte, error) {
	if name, ok := strings.CutPrefix(path, builtin.Prefix); ok {
		module, known := builtin.Module(name)
		if !known {
			return nil, usage(fmt.Errorf("no policy %q comes with the program; there is %s", path, builtin.Prefix+strings.Join(builtin.Names(), ", "+builtin.Prefix)))
		}
		return module, nil
	}
	module, err := vet.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(module) > rollout.MaxModule {
		return nil, usage(fmt.Errorf("%s has more than the %d MiB that a policy may have", path, rollout.MaxModule>>20))
	}
	return module, nil
}

// signatureOf signs the module as the flags say; nil is no signature.
func signatureOf(module []byte, keyFile string, unsigned bool) ([]byte, error) {
	switch {
	case keyFile == "" && !unsigned:
		return nil, usage(errors.New("say --key FILE to sign the policy, or --unsigned if it is to have no signature (yardmaster policy keygen makes a key)"))
	case keyFile == "":
		return nil, nil
	case unsigned:
		return nil, usage(errors.New("--key and --unsigned exclude each other"))
	}
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	key, err := vet.ParsePrivateKey(text)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", keyFile, err))
	}
	return vet.Sign(key, module), nil
}

// push uploads and prints the checks and what came of them.
func (a *app) push(ctx context.Context, client *adminClient, module, signature []byte, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	req, err := client.request(ctx, http.MethodPost, "/admin/policies", bytes.NewReader(module))
	if err != nil {
		return err
	}
	if signature != nil {
		req.Header.Set(admin.Signature, base64.StdEncoding.EncodeToString(signature))
	}
	resp, err := client.send(req, http.StatusUnprocessableEntity)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	var pushed struct {
		admin.Fault
		admin.PolicyPushed
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&pushed); err != nil {
		return fmt.Errorf("the node's answer is not understood; is it of another release? %w", err)
	}
	var report vet.Report
	if len(pushed.Report) > 0 {
		if err := json.Unmarshal(pushed.Report, &report); err != nil {
			return fmt.Errorf("the node's report is not understood; is it of another release? %w", err)
		}
	}
	heading, rows := reportTable(&report)
	if err := out.print(a.out, pushed.PolicyPushed, heading, rows); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusUnprocessableEntity {
		return &codedError{exitRuntime, errors.New(pushed.Error.Message)}
	}
	if out.String() == "table" {
		fmt.Fprintf(a.out, "\n%s@%s is known as %.12s and decides nothing yet: `yardmaster policy shadow %s` lets it try\n",
			pushed.Policy, pushed.Release, pushed.Digest, pushed.Policy)
	}
	return nil
}

// reportTable has a row for each check.
func reportTable(r *vet.Report) (heading []string, rows [][]string) {
	heading = []string{"CHECK", "VERDICT", "MS", "WHY"}
	for _, s := range r.Steps {
		rows = append(rows, []string{s.Name, string(s.Verdict), fmt.Sprintf("%.1f", s.Millis), s.Text})
	}
	return heading, rows
}

func (a *app) policyKeygen() *cobra.Command {
	c := &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a pair of keys to sign policies with",
		Long: `Make an Ed25519 pair: the private key goes into FILE, which only its owner may
read, the public one into FILE.pub. Name FILE.pub in policy.trusted-key of every
planner; sign uploads with --key FILE. A file that is there already stays.`,
		Example: "  yardmaster policy keygen team.key",
		Args:    operand("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			_, private, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return err
			}
			public, secret, err := vet.FormatKeys(private)
			if err != nil {
				return err
			}
			if err := create(args[0], secret, 0o600); err != nil {
				return err
			}
			if err := create(args[0]+".pub", public, 0o644); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "private key: %s (keep it)\npublic key:  %s.pub (for policy.trusted-key of every planner)\n", args[0], args[0])
			return nil
		},
	}
	return c
}

// create writes a file that must not be there yet.
func create(path string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
