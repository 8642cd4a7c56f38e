package identity

import (
	"errors"
	"log/slog"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// Config says where a node's identity comes from: a token file, or the three
// files of the operator's own authority.
type Config struct {
	NodeID string // see fleet.CheckNodeID

	// TokenFile holds cluster tokens, one a line. It wants to be readable by its
	// owner alone.
	TokenFile string
	// Create writes a token file with a fresh token if there is none. Only the
	// first node of a cluster may: a token made twice is two clusters.
	Create bool

	// CertFile, KeyFile and CAFile are PEM. The certificate's first DNS name is
	// the node id, its extended key usage allows server and client; CAFile may
	// hold several authorities, and all are trusted.
	CertFile, KeyFile, CAFile string

	Clock  clock.Clock  // nil is the machine's
	Logger *slog.Logger // nil is silence
}

// Validate reports everything that is wrong, at once.
func (c Config) Validate() error {
	var errs []error
	if err := fleet.CheckNodeID(c.NodeID); err != nil {
		errs = append(errs, err)
	}
	pki := 0
	for _, f := range []string{c.CertFile, c.KeyFile, c.CAFile} {
		if f != "" {
			pki++
		}
	}
	switch {
	case pki == 0 && c.TokenFile == "":
		errs = append(errs, errors.New("a token file is missing, or the files of an own authority"))
	case pki > 0 && c.TokenFile != "":
		errs = append(errs, errors.New("a token file and an own authority exclude each other"))
	case pki > 0 && pki < 3:
		errs = append(errs, errors.New("an own authority takes three files: certificate, key and authorities"))
	}
	if c.Create && c.TokenFile == "" {
		errs = append(errs, errors.New("only a token file can be created"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.Real{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
