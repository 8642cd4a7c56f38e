package assemble

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// errPushed means that a file is named where policies come from planners.
var errPushed = errors.New("a file of a policy is for a gateway without planners; push it to them with yardmaster policy push, and promote it")

// filesTime bounds checking and loading the policies that are named by file.
const filesTime = time.Minute

// governByFiles has policies decide that the settings name by file, which go through
// the same checks as an upload. The operator names the files, so that they need no
// signature. It is nil where none is named; otherwise settings keep a native policy,
// which answers when those cannot.
func governByFiles(ctx context.Context, p Process, c config.Policy, settings *config.Gateway) (*governor, error) {
	if !config.NamesModule(settings.Policy) {
		return nil, nil //nolint:nilnil // a fleet without policies of its own has no governor
	}
	ctx, cancel := context.WithTimeout(ctx, filesTime)
	defer cancel()
	parts, err := config.PolicyParts(settings.Policy)
	if err != nil {
		return nil, err
	}
	settings.Policy = route.Policies()[0].Name()
	c.AllowUnsigned = true
	shop, err := openWorkshop(p, c, "", byItself)
	if err != nil {
		return nil, err
	}
	files, err := readFiles(ctx, shop.checks, parts)
	if err != nil {
		return nil, errors.Join(err, shop.close())
	}
	cluster, err := live.Alone(files)
	if err != nil {
		return nil, errors.Join(err, shop.close())
	}
	g, err := governIn(ctx, p, shop, cluster)
	if err != nil {
		return nil, err
	}
	if err := g.Await(ctx, 0); err != nil {
		g.end() //nolint:contextcheck // ctx may be over, and ending needs time of its own
		return nil, err
	}
	return g, nil
}

// readFiles reads and checks the files among the parts.
func readFiles(ctx context.Context, checks *vet.Pipeline, parts []config.PolicyPart) (files []live.File, err error) {
	for _, part := range parts {
		file := live.File{Policy: part.Name, Kind: rollout.Router, Weight: part.Weight}
		for name, v := range part.Params {
			file.Params = append(file.Params, rollout.Param{Name: name, Value: v})
		}
		if part.File {
			if file.Module, err = vet.ReadFile(part.Name); err != nil {
				return nil, err
			}
			report, err := checks.Check(ctx, file.Module, nil)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s: %w", part.Name, err)
			case rollout.Kind(report.Kind) != rollout.Router:
				return nil, fmt.Errorf("%s: it is of kind %s and cannot route", part.Name, report.Kind)
			}
			file.Policy, file.Release = report.Name, report.Version
			if err := live.CheckParams(report.Manifest, file.Params); err != nil {
				return nil, fmt.Errorf("%s: %w", part.Name, err)
			}
		}
		files = append(files, file)
	}
	return files, nil
}
