package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/server/admin"
)

// adminServer is the operators' API on its listener.
type adminServer struct {
	http *http.Server
	addr string
	done chan struct{}
}

// startAdmin serves the operators' API h where the settings say; nil when they
// say nowhere. The address that is taken by default may be another process's
// already: then this one does without.
func startAdmin(ctx context.Context, p Process, addr string, h http.Handler) (*adminServer, error) {
	if addr == "" {
		return nil, nil
	}
	if err := admin.CheckAddress(addr); err != nil {
		return nil, fmt.Errorf("gateway.admin: %w", err)
	}
	ln, err := listen(ctx, addr, "gateway.admin")
	switch {
	case addr == config.DefaultAdmin && errors.Is(err, syscall.EADDRINUSE):
		p.Log.Info("no admin API: another process has its address", "address", addr)
		return nil, nil
	case err != nil:
		return nil, err
	}
	s := &adminServer{addr: ln.Addr().String(), done: make(chan struct{})}
	s.http = &http.Server{
		Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			p.Log.Error("the admin API ended", "err", err)
		}
	}()
	return s, nil
}

func (s *adminServer) close() {
	_ = s.http.Close() // its requests take no time
	<-s.done
}
