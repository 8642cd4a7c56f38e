package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/raftstore"
)

// inspectSnapshot reads a saved snapshot to its end.
func inspectSnapshot(file string) (raftstore.Archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return raftstore.Archive{}, err
	}
	defer f.Close() //nolint:errcheck // read only
	found, err := raftstore.InspectSnapshot(f)
	if err != nil {
		return found, fmt.Errorf("%s: %w", file, err)
	}
	return found, nil
}

// checkSnapshot is inspectSnapshot for those who only want to know whether it is
// whole.
func checkSnapshot(file string) error {
	_, err := inspectSnapshot(file)
	return err
}

// describeSnapshot prints what a saved snapshot says of itself.
func (a *app) describeSnapshot(out *output, file string) error {
	s, err := inspectSnapshot(file)
	if err != nil {
		return err
	}
	rows := [][]string{
		{"cluster", s.ClusterID},
		{"saved by", s.NodeID + ", " + orDash(s.Version)},
		{"at", s.Created.UTC().Format(time.RFC3339)},
		{"feature level", strconv.FormatUint(uint64(s.Level), 10)},
	}
	for _, g := range []struct {
		name string
		part raftstore.ArchivePart
	}{{"core", s.Core}, {"prefix", s.Prefix}} {
		rows = append(rows, []string{g.name, fmt.Sprintf("%d bytes up to entry %d of term %d", g.part.Bytes, g.part.Index, g.part.Term)})
	}
	return out.print(a.out, s, []string{"WHAT", "VALUE"}, rows)
}

func (a *app) snapshotInspect() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:     "inspect FILE",
		Short:   "Say what a saved snapshot holds, and whether it is whole",
		Long:    "Say what a saved snapshot holds, after reading all of it and checking its sums.\nNo node is asked.",
		Example: "  yardmaster cluster snapshot inspect yardmaster.snap -o json",
		Args:    operand("FILE"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.describeSnapshot(&out, args[0]) },
	}
	out.flag(c)
	return c
}

func (a *app) clusterRecover() *cobra.Command {
	var dir string
	var voters []string
	var dry, sure, lossy bool
	var out output
	c := &cobra.Command{
		Use:   "recover",
		Short: "Make what one planner has the state of the cluster, when a majority is lost",
		Long: `Make what one planner has in its data folder the state of the cluster, when a
majority of the planners is gone for good. While a majority can still be started,
start it instead: nothing is lost then.

What only the lost planners had is lost, and what was written on this one and never
agreed on comes into force. The cluster goes on under a new id: planners that are not
part of the recovery, and come back with what they had, cannot take it over; they stop
as soon as they reach it, and say so. Gateways follow by themselves. Do this on one
planner only:

  1  stop all planners that are left; gateways go on serving
  2  look at each folder with --dry-run, and take the planner with the highest
     term, and of those the highest last entry
  3  run recover --yes there, and start that planner: it leads alone
  4  start others with empty data folders and --join; they come in by themselves

To go on with several planners at once, name all with --voter, and run the same
command on the folder of each: the new id follows from the old one and the voters.

A log that is damaged or has lost its end is refused. With --accept-loss it counts as
far as it can be read; a planner whose log is whole is the better one to go on with.`,
		Example: `  yardmaster cluster recover --data-dir /var/lib/yardmaster --dry-run
  yardmaster cluster recover --data-dir /var/lib/yardmaster --yes
  yardmaster cluster recover --data-dir state --voter planner-0=10.0.0.1:8092 --voter planner-3=10.0.0.4:8092 --yes`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.dataDir(&dir); err != nil {
				return err
			}
			members, err := parseVoters(voters)
			if err != nil {
				return err
			}
			if !dry && !sure {
				return usage(errors.New("this gives up what the other planners had: look with --dry-run first, then say --yes"))
			}
			done, err := raftstore.Recover(raftstore.RecoverConfig{Dir: dir, Voters: members, DryRun: dry, AcceptLoss: lossy, Logger: a.logger(config.Log{Level: "warn"})})
			if err != nil {
				return err
			}
			return a.printRecovery(&out, &done)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", "", "data folder of a planner that does not run; the default is planner.data-dir")
	c.Flags().StringArrayVar(&voters, "voter", nil, "a planner from now on, as ID=HOST:PORT of its peer port; several times; the default is this one alone")
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what is there and what would be done")
	c.Flags().BoolVar(&sure, "yes", false, "yes, give up what the other planners had")
	c.Flags().BoolVar(&lossy, "accept-loss", false, "go on with a damaged log as far as it can be read")
	out.flag(c)
	return c
}

// dataDir fills in the settings' data folder and makes sure that there is one.
func (a *app) dataDir(dir *string) error {
	if *dir == "" {
		e, err := a.load(nil)
		if err != nil {
			return err
		}
		if *dir = e.Config.Planner.DataDir; *dir == "" {
			return usage(errors.New("say with --data-dir where the planner's state is kept"))
		}
	}
	_, err := os.Stat(*dir)
	return err
}

func parseVoters(given []string) ([]raftstore.Member, error) {
	var out []raftstore.Member
	for _, v := range given {
		id, addr, ok := strings.Cut(v, "=")
		if !ok || id == "" || addr == "" {
			return nil, usage(fmt.Errorf("--voter %q is not a name and an address such as planner-0=10.0.0.1:8092", v))
		}
		out = append(out, raftstore.Member{ID: id, Addr: addr, Voter: true})
	}
	return out, nil
}

func (a *app) printRecovery(out *output, r *raftstore.Recovery) error {
	if out.String() == "table" {
		fmt.Fprintf(a.out, "cluster %s, as %s has it\n", r.ClusterID, r.NodeID)
	}
	var rows [][]string
	for _, g := range []struct {
		name  string
		group raftstore.RecoveryGroup
	}{{"core", r.Core}, {"prefix", r.Prefix}} {
		rows = append(rows, []string{
			g.name, strconv.FormatUint(g.group.Term, 10), strconv.FormatUint(g.group.Last, 10), strconv.FormatUint(g.group.Snapshot, 10),
			named(g.group.Members),
		})
	}
	if err := out.print(a.out, r, []string{"GROUP", "TERM", "LAST", "SNAPSHOT", "MEMBERS"}, rows); err != nil || out.String() != "table" {
		return err
	}
	voters := named(r.Voters)
	if r.Done {
		fmt.Fprintf(a.out, "from now on: %s, as cluster %s; start it, and the others with empty data folders and --join\n", voters, r.NewClusterID)
		return nil
	}
	fmt.Fprintf(a.out, "nothing was changed; with --yes the planners would be: %s\n", voters)
	return nil
}

func named(members []raftstore.Member) string {
	var out []string
	for _, m := range members {
		text := m.ID + "=" + m.Addr
		if !m.Voter {
			text += " (gateway)"
		}
		out = append(out, text)
	}
	return orDash(strings.Join(out, " "))
}
