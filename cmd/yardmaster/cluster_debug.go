package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// maxBundle bounds what one node's bundle unpacks to.
const maxBundle = 1 << 30

func (a *app) clusterDebug() *cobra.Command {
	var addresses []string
	var file string
	c := &cobra.Command{
		Use:   "debug",
		Short: "Collect what a fault report needs into one archive",
		Long: `Collect from one node, or from several by their admin addresses, into one tar.gz
with a folder for each: the status of all members as the node sees it, its
metrics, goroutines and heap profile, its settings and version. There are no
prompts, no tokens and no keys in it; addresses and names are.

An admin API is reached from its own machine only: on other machines run this
there, and send both files.`,
		Example: "  yardmaster cluster debug\n  yardmaster cluster debug --admin 127.0.0.1:8091 --admin 127.0.0.1:8191 --file fault.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(addresses) == 0 {
				addresses = []string{""}
			}
			if file == "" {
				file = "yardmaster-debug-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			var missed []error
			err := writeWhole(file, func(w io.Writer) error {
				var got int
				got, missed = a.collect(c.Context(), w, addresses)
				if got == 0 {
					return errors.Join(missed...)
				}
				return nil
			}, nil)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, file)
			if len(missed) > 0 {
				return &codedError{exitPartial, errors.Join(missed...)}
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&addresses, "admin", nil, "admin API of a node, an address or URL; may be given several times; the default is gateway.admin")
	c.Flags().StringVar(&file, "file", "", "file to write; the default has the time in its name")
	return c
}

// collect writes one archive of the bundles of all nodes that answer, and says of
// how many, and why not of the others.
func (a *app) collect(ctx context.Context, w io.Writer, addresses []string) (got int, missed []error) {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	for _, address := range addresses {
		client, err := a.adminAt(address)
		if err == nil {
			err = client.bundle(ctx, archive)
		}
		if err != nil {
			missed = append(missed, err)
			continue
		}
		got++
	}
	if err := errors.Join(archive.Close(), packed.Close()); err != nil {
		return 0, append(missed, err)
	}
	return got, missed
}

// bundle copies the parts of one node's bundle.
func (c *adminClient) bundle(ctx context.Context, to *tar.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*adminTimeout)
	defer cancel()
	resp, err := c.stream(ctx, http.MethodGet, "/admin/cluster/debug", http.NoBody)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	unpacked, err := gzip.NewReader(resp.Body)
	if err != nil {
		return fmt.Errorf("%s: the bundle is damaged: %w", c.base, err)
	}
	parts := tar.NewReader(io.LimitReader(unpacked, maxBundle))
	for {
		header, err := parts.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: the bundle broke off: %w", c.base, err)
		}
		if err := to.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(to, parts); err != nil { //nolint:gosec // bounded above
			return fmt.Errorf("%s: the bundle broke off: %w", c.base, err)
		}
	}
}
