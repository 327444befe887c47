package micro

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"orbitkv/internal/client"
	"orbitkv/internal/wire"
)

// Bounds of waits on the Manager.
const (
	startTimeout = 2 * time.Minute
	dialEvery    = 20 * time.Millisecond
)

const socketPathMax = 107 // bytes of the path of a Unix socket

// manager is an `orbitkv serve` that this process started.
type manager struct {
	*child
	socket string
	dir    string
}

// socketFolder makes a private folder for one socket. Its owner removes it.
func socketFolder(name string) (dir, socket string, err error) {
	dir, err = os.MkdirTemp("", "orbitkv-bench-")
	if err != nil {
		return "", "", fmt.Errorf("a folder for the socket: %w: name one with room by TMPDIR", err)
	}
	socket = filepath.Join(dir, name)
	if len(socket) > socketPathMax {
		err = fmt.Errorf("the socket %s has a path of %d bytes, the kernel takes %d: name a shorter folder by TMPDIR", socket, len(socket), socketPathMax)
		return "", "", errors.Join(err, os.Remove(dir))
	}
	return dir, socket, nil
}

// startManager starts the program with its socket in a fresh folder and waits until it answers a hello.
func startManager(ctx context.Context, o ChannelOptions) (*manager, error) {
	dir, socket, err := socketFolder("orbitkv.sock")
	if err != nil {
		return nil, err
	}
	process, err := startChild(o.Program, "serve", "--socket", socket, "--pool-size", strconv.FormatUint(o.PoolBytes, 10), "--http-addr", "off", "--log-level", "warn")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the Manager: %w", err), os.RemoveAll(dir))
	}
	m := &manager{child: process, socket: socket, dir: dir}
	if err := m.awaitHello(ctx); err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

func (m *manager) awaitHello(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	for {
		c, err := client.Dial(ctx, m.socket, client.Options{Role: wire.RoleTool, Name: "bench"})
		if err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case exit := <-m.exited:
			m.exited <- exit
			return fmt.Errorf("the Manager ended at its start: %w", errors.Join(exit, err))
		case <-ctx.Done():
			return fmt.Errorf("the Manager does not answer: %w", err)
		}
	}
}

// stop ends the Manager and removes its folder.
func (m *manager) stop() error { return errors.Join(m.child.stop(), os.RemoveAll(m.dir)) }

// engine is one engine replica of one rank: the session that asks and the session that copies.
type engine struct {
	instance  string
	scheduler *client.Client
	worker    *client.Client
	namespace uint32
}

// sliceBytes is the size of a page in the benchmarks over the socket: the smallest, so that a small pool holds many pages.
const sliceBytes = 4 << 10

// openEngine attaches and registers, and waits until every arena of the pool is mapped. All engines have the same facts, so
// they share one namespace.
func openEngine(ctx context.Context, m *manager, instance string) (*engine, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	e := &engine{instance: instance}
	var err error
	if e.worker, err = client.Dial(ctx, m.socket, client.Options{Role: wire.RoleWorker, Name: "bench worker"}); err != nil {
		return nil, err
	}
	if e.scheduler, err = client.Dial(ctx, m.socket, client.Options{Role: wire.RoleScheduler, Name: "bench scheduler"}); err != nil {
		return nil, errors.Join(err, e.worker.Close())
	}
	if err := e.join(ctx); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *engine) join(ctx context.Context) error {
	_, err := e.worker.Attach(ctx, wire.Attach{
		Instance: e.instance, World: 1, Storage: true, SliceBytes: sliceBytes, NUMA: -1, Writer: wire.WriterHost, Backend: "host",
		Facts: map[string]string{"model": "bench"},
	})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if err := e.worker.WaitMapped(ctx, e.worker.Welcome().PoolBytes); err != nil {
		return err
	}
	if err := e.worker.Ping(ctx); err != nil { // the Manager has taken every `mapped` that went before
		return err
	}
	registered, err := e.scheduler.Register(ctx, e.instance, wire.AllRanks)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	e.namespace = registered.Namespace
	return nil
}

func (e *engine) close() error { return errors.Join(e.worker.Close(), e.scheduler.Close()) }

// publishAll publishes the keys in order, in operations as large as the channel takes.
func (e *engine) publishAll(ctx context.Context, keys []wire.Key) error {
	for part := range slices.Chunk(keys, wire.OperationKeysMax) {
		if _, _, err := e.publish(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// publish makes pages of these keys visible and returns the time until the reserve was answered, and until the Manager had sealed the pages. Their
// bytes are never read here, so none is written.
func (e *engine) publish(ctx context.Context, keys []wire.Key) (reserve, commit time.Duration, err error) {
	begun := time.Now()
	reserved, err := e.scheduler.Reserve(ctx, wire.Reserve{Namespace: e.namespace, Instance: e.instance, Keys: keys})
	reserve = time.Since(begun)
	if err != nil {
		return 0, 0, err
	}
	if int(reserved.Pages) != len(keys) {
		return 0, 0, fmt.Errorf("%d of %d pages were granted: the pool is too small or not fresh", reserved.Pages, len(keys))
	}
	if err := e.worker.Committed(reserved.Reservation, 0, wire.Range{Count: reserved.Pages}); err != nil {
		return 0, 0, err
	}
	err = e.worker.Ping(ctx)
	return reserve, time.Since(begun), err
}
