package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/fetch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/gpu/collect"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/model"
	"github.com/yardmaster/yardmaster/gpu/cpu/pd"
	"github.com/yardmaster/yardmaster/gpu/cpu/serve"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/tcp"
)

// cpuHost is the CPU engine as a worker: model, scheduler, transfer endpoint
// and API, in the order in which they are closed, backwards.
type cpuHost struct {
	id  fleet.WorkerID
	own engine.OwnEpoch

	model    *model.Model
	engine   *batch.Engine
	endpoint *tcp.Endpoint
	handler  *serve.Handler
	http     *http.Server
	served   chan error

	name     string
	compat   string
	api      string // host:port as others reach it
	transfer string // likewise
}

// Model is a loaded model with what its text needs.
type Model struct {
	*model.Model
	Tokenizer *tokens.Tokenizer
	Template  *tokens.Template // nil when the model has none
	Name      string           // what clients call it
}

// ModelPath finds the file that a model setting means: a name of the catalogue
// that has been fetched, or a path. Errors wrap fetch.ErrUnknownModel or
// ErrModelMissing.
func ModelPath(setting string) (path, name string, err error) {
	if strings.ContainsAny(setting, `/\.`) {
		base := filepath.Base(setting)
		return setting, strings.TrimSuffix(base, filepath.Ext(base)), nil
	}
	m, err := fetch.Lookup(setting)
	if err != nil {
		return "", "", err
	}
	dir, err := fetch.DefaultDir()
	if err != nil {
		return "", "", err
	}
	path, ok := fetch.Fetcher{Dir: dir}.Find(m)
	if !ok {
		return "", "", fmt.Errorf("%w: run `yardmaster model fetch %s`, or give the path of a .gguf file", ErrModelMissing, setting)
	}
	return path, m.Name, nil
}

// ErrModelMissing means that a model is known and not on this machine.
var ErrModelMissing = errors.New("the model is not on this machine")

// LoadModel opens the model that setting means. The caller closes it.
func LoadModel(setting string, opts model.Options) (*Model, error) {
	path, name, err := ModelPath(setting)
	if err != nil {
		return nil, err
	}
	m, err := model.Open(path, opts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := &Model{Model: m, Name: name}
	if err := out.text(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), m.Close())
	}
	return out, nil
}

// text reads the tokenizer and the chat template.
func (m *Model) text() error {
	vocab, err := serve.Vocab(m.Metadata())
	if err != nil {
		return err
	}
	if m.Tokenizer, err = tokens.New(vocab); err != nil {
		return err
	}
	if source := m.Tokenizer.ChatTemplate(); source != "" {
		m.Template, err = tokens.ParseTemplate(source)
	}
	return err
}

// Vocab is the number of tokens of the model that setting means, without
// loading it.
func Vocab(setting string) (int, error) {
	path, _, err := ModelPath(setting)
	if err != nil {
		return 0, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close() //nolint:errcheck // read only
	v, err := serve.Vocab(f)
	return len(v.Tokens), err
}

const (
	blockTokens = 16
	// kvBudget bounds the KV memory that is taken without being asked for.
	kvBudget = 512 << 20
	// contexts is how many whole contexts the cache holds if the budget allows.
	contexts = 4
)

// kvBlocks derives the size of the KV cache: some whole contexts within the
// budget, and never less than one.
func kvBlocks(m *model.Model) int {
	one := (m.Config().Context + blockTokens - 1) / blockTokens
	return max(one, min(contexts*one, kvBudget/m.Layout(blockTokens).BlockBytes()))
}

// EngineOptions are the batch engine's options for a worker's settings.
func EngineOptions(p Process, c config.Worker, m *model.Model) batch.Options {
	blocks := c.KVBlocks
	if blocks == 0 {
		blocks = kvBlocks(m)
	}
	return batch.Options{
		KVBlocks: blocks, BlockTokens: blockTokens, MaxContext: m.Config().Context,
		MaxRunning: c.MaxRunning, TokenBudget: max(c.StepTokens, c.MaxRunning),
		Registry: p.Registry, Clock: p.Clock,
	}
}

func startCPU(ctx context.Context, p Process, c config.Worker, security config.TLS, ln net.Listener) (_ host, err error) {
	h := &cpuHost{id: fleet.WorkerID(c.ID), served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close(ctx))
		}
	}()
	if h.api, err = advertised(ln.Addr(), c.Advertise); err != nil {
		return nil, err
	}
	began := p.Clock.Now()
	m, err := LoadModel(c.Model, model.Options{Exact: c.Exact, Threads: c.Threads})
	if err != nil {
		return nil, fmt.Errorf("worker.model: %w", err)
	}
	h.model, h.name, h.compat = m.Model, m.Name, m.Digest()
	if c.ServedName != "" {
		h.name = c.ServedName
	}
	if h.engine, err = batch.New(m.Model, EngineOptions(p, c, m.Model)); err != nil {
		return nil, err
	}
	if err := h.listenTransfer(ctx, p, c, security); err != nil {
		return nil, err
	}
	if err := h.serve(p, m, ln); err != nil {
		return nil, err
	}
	p.Log.Info("engine ready", "engine", "cpu", "model", h.name, "kernels", m.Kernels(), "threads", m.Threads(),
		"kv_blocks", h.engine.Options().KVBlocks, "api", h.api, "transfer", h.transfer, "took", p.Clock.Now().Sub(began))
	return h, nil
}

// listenTransfer opens the KV transfer endpoint.
func (h *cpuHost) listenTransfer(ctx context.Context, p Process, c config.Worker, security config.TLS) error {
	tlsConfig, err := mutualTLS(security)
	if err != nil {
		return err
	}
	h.endpoint, err = tcp.Listen(ctx, c.Transfer, tcp.Options{
		Config: transfer.Config{
			Transport: "tcp", Memory: pd.NewMemory(h.engine.Pool(), h.engine.Cache(), h.model.Dim(), h.compat),
			ID: h.id, Own: &h.own, Clock: p.Clock, Registry: p.Registry,
		},
		TLS: tlsConfig,
	})
	if err != nil {
		return fmt.Errorf("worker.transfer: %w", err)
	}
	if err := checkPlaintext(h.endpoint.Addr(), security); err != nil {
		return fmt.Errorf("worker.transfer: %w", err)
	}
	if h.transfer = c.TransferAs; h.transfer == "" {
		h.transfer, err = advertised(h.endpoint.Addr(), c.Advertise)
	}
	return err
}

// Limits of the API's listener. Gateways are its only clients; each keeps a
// connection a request.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxConns      = 16384
)

// serve opens the API on ln.
func (h *cpuHost) serve(p Process, m *Model, ln net.Listener) (err error) {
	h.handler, err = serve.New(serve.Options{
		Model: h.name, MaxModelLen: h.engine.Options().MaxContext,
		Engine: h.engine, Tokenizer: m.Tokenizer, Template: m.Template,
		Legs: pd.New(h.endpoint.Node()), Own: &h.own, Version: p.Version, Clock: p.Clock, Log: p.Log,
	})
	if err != nil {
		return err
	}
	h.http = &http.Server{
		Handler: beside(p, h.handler), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug),
	}
	go func() { h.served <- h.http.Serve(netutil.LimitListener(ln, maxConns)) }()
	return nil
}

func (h *cpuHost) epoch(e fleet.Epoch) { h.own.Set(e) }

func (h *cpuHost) describe(w *fleet.Worker) {
	opts, layout := h.engine.Options(), h.engine.Pool().Layout
	w.URL = "http://" + h.api
	w.Transfer = h.transfer
	w.Models = []string{h.name}
	w.Compat = h.compat
	w.Capacity = fleet.Capacity{
		KVBlocks: unit.Blocks(opts.KVBlocks), BlockTokens: unit.Tokens(opts.BlockTokens),
		MaxContext: unit.Tokens(opts.MaxContext), MaxRunning: opts.MaxRunning,
	}
	addLabel(w, route.LabelKVTokenBytes, strconv.Itoa(layout.BlockBytes()/layout.BlockTokens))
}

func (h *cpuHost) stats() fleet.Stats {
	s := h.engine.Stats()
	out := fleet.Stats{
		Running: fleet.Report(float64(s.Running)), Waiting: fleet.Report(float64(s.Waiting)),
		KVBlocksFree: fleet.Report(float64(s.BlocksFree)),
	}
	// A zero rate is one that nobody has measured yet.
	if s.PrefillTokensPerSecond > 0 {
		out.PrefillTokensPerSecond = fleet.Report(s.PrefillTokensPerSecond)
	}
	if s.DecodeStep > 0 {
		out.DecodeStepSeconds = fleet.Report(s.DecodeStep.Seconds())
	}
	return out
}

func (h *cpuHost) sources() []collect.Source {
	return []collect.Source{collect.CPU{Cache: h.engine.Cache()}}
}

func (h *cpuHost) drain(ctx context.Context) error { return h.handler.Drain(ctx) }

// close ends the parts that were started, the last one first.
func (h *cpuHost) close(ctx context.Context) error {
	var faults []error
	if h.http != nil {
		if h.http.Shutdown(ctx) != nil {
			faults = append(faults, h.http.Close())
		}
		if err := <-h.served; !errors.Is(err, http.ErrServerClosed) {
			faults = append(faults, err)
		}
	}
	if h.engine != nil {
		faults = append(faults, h.engine.Close(ctx))
	}
	if h.endpoint != nil {
		faults = append(faults, h.endpoint.Close())
	}
	if h.model != nil {
		faults = append(faults, h.model.Close())
	}
	return errors.Join(faults...)
}
