package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/server/admin"
)

// adminServer is the operators' API on its listener.
type adminServer struct {
	http    *http.Server
	ln      net.Listener
	addr    string
	gateway atomic.Pointer[dispatch.Dispatcher] // of this process; nil before it has one
	done    chan struct{}
}

// listenAdmin takes the address of the operators' API, so that others can be told
// of it; nil when the settings name none. The address that is taken by default may
// be another process's already: then this one does without.
func listenAdmin(ctx context.Context, p Process, addr string) (*adminServer, error) {
	if addr == "" {
		return nil, nil
	}
	if err := admin.CheckAddress(addr); err != nil {
		return nil, fmt.Errorf("gateway.admin: %w", err)
	}
	ln, err := listen(ctx, addr, "gateway.admin")
	switch {
	case addr == config.DefaultAdmin && errors.Is(err, syscall.EADDRINUSE):
		p.Log.Warn("no admin API: another process has its address; --admin, or --gateway-admin for a planner, gives this one its own", "address", addr)
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &adminServer{ln: ln, addr: ln.Addr().String()}, nil
}

// serve answers with what parts there are, and with the gateway once there is one.
func (s *adminServer) serve(p Process, parts admin.Parts) {
	if s == nil {
		return
	}
	parts.Registry = p.Registry
	parts.About = admin.About{Version: p.Version, Settings: p.Settings}
	parts.Dispatcher = s.gateway.Load
	s.done = make(chan struct{})
	s.http = &http.Server{
		Handler: admin.Handler(parts), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
			p.Log.Error("the admin API ended", "error", err)
		}
	}()
}

// dispatcher is the process's gateway, nil before it has one.
func (s *adminServer) dispatcher() *dispatch.Dispatcher {
	if s == nil {
		return nil
	}
	return s.gateway.Load()
}

// address is where the API answers; empty when there is none.
func (s *adminServer) address() string {
	if s == nil {
		return ""
	}
	return s.addr
}

// url is the root of the API; empty when there is none.
func (s *adminServer) url() string {
	if s == nil {
		return ""
	}
	return "http://" + s.addr
}

// close ends the API, whether it was served or only listened.
func (s *adminServer) close() {
	switch {
	case s == nil:
	case s.http == nil:
		_ = s.ln.Close() // nobody was ever answered
	default:
		_ = s.http.Close() // what runs longer than a moment is a snapshot, which breaks off visibly
		<-s.done
	}
}
