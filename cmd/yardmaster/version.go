package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the Go release",
		Example: "  yardmaster version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info := versionInfo{a.version, a.revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return out.print(a.out, info, []string{"VERSION", "COMMIT", "GO", "PLATFORM"}, [][]string{{info.Version, info.Commit, info.Go, info.Platform}})
		},
	}
	out.flag(c)
	return c
}

// revision is the commit that the binary was built from: the one the linker
// was told, else the one that the Go command noted.
func (a *app) revision() string {
	if a.commit != "" {
		return a.commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return revision + dirty
}
