package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/server/admin"
)

func (a *app) clusterSnapshot() *cobra.Command {
	return noun("snapshot", "Save the replicated state to a file, and bring it back",
		a.snapshotSave(), a.snapshotRestore(), a.snapshotInspect())
}

func (a *app) snapshotSave() *cobra.Command {
	var address string
	var overwrite bool
	var out output
	c := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the replicated state to a file",
		Long: `Save the state of both Raft groups, as the leader has it, to a file. The file is
checked before it gets its name, so that what is there is whole. It holds no
prompts, but prefix hashes, worker addresses and tenants' quotas: keep it as you
keep configuration.`,
		Example: "  yardmaster cluster snapshot save yardmaster.snap",
		Args:    operand("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); err == nil && !overwrite {
				return usage(fmt.Errorf("%s is there already: choose another name or say --overwrite", args[0]))
			}
			if err := client.saveSnapshot(c.Context(), args[0]); err != nil {
				return err
			}
			return a.describeSnapshot(&out, args[0])
		},
	}
	c.Flags().BoolVar(&overwrite, "overwrite", false, "replace a file of that name")
	adminFlag(c, &address)
	out.flag(c)
	return c
}

// saveSnapshot downloads to a file beside name, which takes the name once it is
// whole and on disk.
func (c *adminClient) saveSnapshot(ctx context.Context, name string) error {
	resp, err := c.stream(ctx, http.MethodGet, "/admin/cluster/snapshot", http.NoBody)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	return writeWhole(name, func(w io.Writer) error {
		if _, err := io.Copy(w, resp.Body); err != nil {
			return fmt.Errorf("the snapshot broke off: %w", err)
		}
		return nil
	}, checkSnapshot)
}

// writeWhole has write fill a temporary file and check look at it, and gives it
// its name when both are content.
func writeWhole(name string, write func(io.Writer) error, check func(string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error matters
		}
	}()
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if check != nil {
		if err := check(f.Name()); err != nil {
			return err
		}
	}
	return os.Rename(f.Name(), name)
}

func (a *app) snapshotRestore() *cobra.Command {
	var address string
	var sure bool
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the whole replicated state by a saved one",
		Long: `Replace the state of the whole cluster by a saved one, after checking the file.
What was changed since it was saved is lost. Workers that are not in it register
again by themselves, and tell what they hold; gateways go on serving meanwhile.`,
		Example: "  yardmaster cluster snapshot restore yardmaster.snap --yes",
		Args:    operand("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkSnapshot(args[0]); err != nil {
				return err
			}
			if !sure {
				return usage(errors.New("this replaces the state of the whole cluster: say --yes if that is wanted"))
			}
			client, err := a.adminAt(address)
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // read only
			resp, err := client.stream(c.Context(), http.MethodPost, "/admin/cluster/snapshot", f)
			if err != nil {
				return err
			}
			defer resp.Body.Close() //nolint:errcheck // read only
			var p admin.Peers
			if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&p); err != nil {
				return fmt.Errorf("the node's answer is not understood: %w", err)
			}
			fmt.Fprintf(a.out, "restored from %s\n", args[0])
			return nil
		},
	}
	c.Flags().BoolVar(&sure, "yes", false, "yes, replace the state of the whole cluster")
	adminFlag(c, &address)
	return c
}
