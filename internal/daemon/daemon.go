package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"orbitkv/internal/admin"
	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
	"orbitkv/internal/config"
	"orbitkv/internal/doctor"
	"orbitkv/internal/metrics"
	"orbitkv/internal/session"
	"orbitkv/internal/wire"
)

// tickEvery is the beat of the cache's clock: pings, revokes, labels, queries that wait.
const tickEvery = 250 * time.Millisecond

// clearWait is how long a clear waits for the disks. It is less than an answer may take.
const clearWait = 30 * time.Second

// Options is what a Manager runs with.
type Options struct {
	Config   config.Config
	Version  string
	Log      *slog.Logger
	Timeline io.Writer // takes the lines of Config.TraceTransfers; its Write never waits
}

// Manager is one running Cache Manager.
type Manager struct {
	options     Options
	log         *slog.Logger
	started     time.Time
	incarnation wire.ID16
	pool        *arena.Pool
	views       *arena.Views // nil when nothing here reads or writes pages
	tier        *tier        // nil without an SSD
	cache       *cache.Cache
	metrics     *metrics.Registry
	sessions    *session.Server
	token       *admin.Token
	http        *admin.Server // nil when switched off
	progress    progress
}

// progress is how much of the pool is lent.
type progress struct {
	mu     sync.Mutex
	bytes  uint64
	arenas int
	fault  error
}

// Run starts a Manager, serves until ctx ends, and stops it. The error says what could not be started and what to do.
func Run(ctx context.Context, o Options) error {
	m := &Manager{options: o, log: o.Log, started: time.Now()}
	rand.Read(m.incarnation[:])
	if err := checkMemory(o.Config.PoolBytes); err != nil {
		return err
	}
	err := m.start()
	if err == nil {
		err = m.serve(ctx)
	}
	return errors.Join(err, m.stop())
}

// checkMemory refuses a pool that the control group would answer with a kill.
func checkMemory(poolBytes uint64) error {
	allowed, err := doctor.AllowedMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	if poolBytes > allowed.Bytes {
		return fmt.Errorf("a pool of %s is larger than the %s that %s allows: lower --%s or raise the limit",
			config.FormatSize(poolBytes), config.FormatSize(allowed.Bytes), allowed.Source, config.FlagPoolSize)
	}
	return nil
}

// start opens everything in order. What it opened is closed by stop, also after an error.
func (m *Manager) start() (err error) {
	cfg := m.options.Config
	m.pool, err = arena.Create(arena.Config{PoolBytes: cfg.PoolBytes, HugePages: cfg.HugePages, Incarnation: hex.EncodeToString(m.incarnation[:4])})
	if err != nil {
		return err
	}
	if err := m.startCache(); err != nil {
		return err
	}
	m.sessions, err = session.Listen(session.Config{
		Socket: cfg.Socket, Cache: m.cache, Incarnation: m.incarnation, PoolBytes: m.pool.Bytes(),
		SessionOperations: cache.DefaultSessionOperations, Metrics: m.metrics.Channel, Log: m.log,
	})
	if err != nil {
		return err
	}
	if cfg.HTTPAddress == "" {
		return nil
	}
	if m.token, err = admin.OpenToken(cfg.AdminTokenFile, cfg.TokenFileNamed); err != nil {
		return err
	}
	var verifySSD admin.VerifySSD
	if m.tier != nil {
		verifySSD = m.tier.store.Verify
	}
	m.http, err = admin.Listen(admin.Config{
		Address: cfg.HTTPAddress, Token: m.token, Status: m.status, Verify: m.cache.Check, Clear: m.clear, Cleanup: m.cache.Cleanup,
		VerifySSD: verifySSD, Metrics: m.metrics.Gatherer, Refused: m.metrics.HTTPRefused, Log: m.log,
	})
	return err
}

// startCache opens the SSD tier, if there is one, then makes the cache: whoever connects finds what the disk has.
func (m *Manager) startCache() (err error) {
	cfg := m.options.Config
	of := cacheConfig(cfg, m.pool)
	if cfg.TraceTransfers {
		of.Trace = newTimeline(m.options.Timeline, m.options.Version).record
	}
	if of.Scrub || len(cfg.SSD.Paths) > 0 {
		if m.views, err = m.pool.Map(); err != nil {
			return err
		}
	}
	if len(cfg.SSD.Paths) == 0 {
		m.cache = cache.New(of)
		m.metrics = metrics.New(m.cache.Stats, nil, m.options.Version)
		return nil
	}
	if m.tier, err = openTier(cfg.SSD, m.pool, m.views, m.log); err != nil {
		return err
	}
	of.Tier = m.tier
	m.cache = cache.New(of)
	m.tier.start(m.cache)
	m.metrics = metrics.New(m.cache.Stats, &metrics.Tier{Stats: m.tier.store.Stats, DemandsDropped: m.tier.demands.droppedTotal}, m.options.Version)
	return nil
}

func cacheConfig(cfg config.Config, pool *arena.Pool) cache.Config {
	return cache.Config{
		PoolBytes: pool.Bytes(), QueryBudgetBytes: cfg.QueryBudgetBytes, InstanceBudgetBytes: cfg.InstanceBudgetBytes, Nodes: nodesOf(pool),
		ReadBatchBytes: cfg.ReadBatchBytes, StopPolicy: stopPolicies[cfg.StopPolicy], ReadTimeout: cfg.ReadTimeout,
		WritePolicy: writePolicies[cfg.SSD.WritePolicy], ProtectedPercent: cfg.ProtectedPercent, LFUAdmission: cfg.LFUAdmission, Scrub: cfg.PoolScrubRate > 0,
	}
}

// The cache's policies of the words of the configuration. Without an SSD no word is written, and no page either.
var (
	stopPolicies = map[string]cache.StopPolicy{
		config.StopWaitComplete: cache.WaitComplete, config.StopBestEffort: cache.BestEffort, config.StopTimeout: cache.Timeout,
	}
	writePolicies = map[string]cache.WritePolicy{config.WriteAll: cache.WriteAll, config.WriteReuse: cache.WriteReuse}
)

// The cache knows an arena of each id that a pool may have.
const _ = uint(cache.ArenasMax - arena.ArenasMax)

func nodesOf(p *arena.Pool) (nodes []int) {
	for _, a := range p.Arenas() {
		if a.Node >= 0 && !slices.Contains(nodes, a.Node) {
			nodes = append(nodes, a.Node)
		}
	}
	return nodes
}

// serve runs the background work until ctx ends, or until it is clear that nothing will ever be lent.
func (m *Manager) serve(ctx context.Context) error {
	m.announce()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	work.Go(func() { m.tick(ctx) })
	if rate := m.options.Config.PoolScrubRate; rate > 0 {
		s := &scrubber{cache: m.cache, views: m.views, log: m.log, rate: rate}
		work.Go(func() { s.run(ctx) })
	}
	work.Go(func() { nameLeftovers(m.log, "/proc", hex.EncodeToString(m.incarnation[:4])) })
	work.Go(func() {
		if err := m.populate(ctx); err != nil {
			cancel(err)
		}
	})
	<-ctx.Done()
	m.log.Info("stopping")
	work.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (m *Manager) announce() {
	cfg := m.options.Config
	http, token := "off", ""
	if m.http != nil {
		http, token = m.http.Address(), m.token.Path
	}
	m.log.Info("Cache Manager started", "version", m.options.Version, "pid", os.Getpid(), "abi", wire.ABI, "socket", cfg.Socket, "http", http,
		"token_file", token, "pool_bytes", m.pool.Bytes(), "arenas", len(m.pool.Arenas()), "huge_pages", cfg.HugePages,
		"query_budget_bytes", cfg.QueryBudgetBytes, "instance_budget_bytes", cfg.InstanceBudgetBytes, "incarnation", hex.EncodeToString(m.incarnation[:]))
}

func (m *Manager) tick(ctx context.Context) {
	beat := time.NewTicker(tickEvery)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			m.cache.Tick()
		}
	}
}

// populate lends arena after arena. A pool that stays smaller than configured serves on, degraded; one without any arena is an error.
func (m *Manager) populate(ctx context.Context) error {
	err := m.pool.Populate(ctx, m.log, freeMemory, func(a *arena.Arena) {
		m.cache.AddArena(a.ID, a.Node, a.Bytes)
		m.sessions.AddArena(a)
		m.progress.mu.Lock()
		defer m.progress.mu.Unlock()
		m.progress.bytes += a.Bytes
		m.progress.arenas++
	})
	if err == nil || ctx.Err() != nil {
		return nil
	}
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.progress.fault = err
	if m.progress.arenas == 0 {
		return fmt.Errorf("nothing of the pool could be populated: %w", err)
	}
	m.log.Error("the pool stays smaller than configured", "populated_bytes", m.progress.bytes, "error", err)
	return nil
}

func freeMemory() (bytes uint64, source string, err error) {
	free, err := doctor.FreeMemory(os.DirFS("/"))
	return free.Bytes, free.Source, err
}

// stop closes what start opened, last first.
func (m *Manager) stop() error {
	var errs []error
	if m.http != nil {
		errs = append(errs, m.http.Close())
	}
	if m.token != nil {
		errs = append(errs, m.token.Close())
	}
	if m.sessions != nil {
		errs = append(errs, m.sessions.Close())
	}
	if m.tier != nil {
		m.log.Info("closing the SSD tier: what the disk was told to do is waited for, and what waits to be written is written for a few seconds")
		errs = append(errs, m.tier.close())
	}
	if m.views != nil {
		errs = append(errs, m.views.Close())
	}
	if m.pool != nil {
		errs = append(errs, m.pool.Close())
	}
	return errors.Join(errs...)
}

// clear empties the cache. With an SSD it returns when no restart brings the pages back, or says that one may: whoever clears since weights have changed
// relies on it.
func (m *Manager) clear() (admin.ClearReport, error) {
	if m.tier == nil {
		return admin.ClearReport{CleanupReport: m.cache.Clear()}, nil
	}
	stored := m.tier.store.Stats()
	report := admin.ClearReport{CleanupReport: m.cache.Clear(), SSDBytes: stored.StoredBytes}
	for _, pages := range stored.Pages {
		report.SSDPages += pages
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearWait)
	defer cancel()
	return report, m.tier.store.AwaitClear(ctx)
}

func (m *Manager) status() admin.Status {
	stats := m.cache.Stats()
	s := admin.Status{
		Version: m.options.Version, PID: os.Getpid(), Incarnation: hex.EncodeToString(m.incarnation[:]), UptimeSeconds: uint64(time.Since(m.started).Seconds()),
		Socket: m.options.Config.Socket, Connections: m.sessions.Connections(), Cache: m.cache.Status(),
		Pool: admin.Pool{ConfiguredBytes: m.pool.Bytes(), HugePages: m.options.Config.HugePages, Arenas: len(m.pool.Arenas())},
	}
	m.progress.mu.Lock()
	s.Pool.PopulatedBytes, s.Pool.PopulatedArenas = m.progress.bytes, m.progress.arenas
	if m.progress.fault != nil {
		s.Pool.Error = m.progress.fault.Error()
	}
	m.progress.mu.Unlock()
	if m.tier != nil {
		s.SSD = &admin.SSD{Volumes: m.tier.store.Status(), Stats: m.tier.store.Stats(), DemandsDropped: m.tier.demands.droppedTotal()}
	}
	if err := m.sessions.CheckSocket(); err != nil {
		s.SocketError = err.Error()
	}
	s.Judge(stats.StalledBytes, stats.QuarantinedBytes)
	return s
}
