package client

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"orbitkv/internal/wire"
)

// Arena is one arena of the Manager, mapped for reading and writing.
type Arena struct {
	ID    uint16
	Node  int16  // NUMA node, -1 when not placed
	Bytes []byte // the mapping; not to be touched after Close
}

// Arena returns a mapped arena.
func (c *Client) Arena(id uint16) (*Arena, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.arenas[id]
	return a, ok
}

// WaitMapped waits until arenas of at least so many bytes are mapped. The Manager may hear of the last one a little later: another
// session then finds pages that are counted as not mapped, unless a Ping of this one came back first.
func (c *Client) WaitMapped(ctx context.Context, bytes uint64) error {
	for {
		c.mu.Lock()
		have, changed := uint64(0), c.mapped
		for _, a := range c.arenas {
			have += uint64(len(a.Bytes))
		}
		c.mu.Unlock()
		if have >= bytes {
			return nil
		}
		select {
		case <-changed:
		case <-c.done:
			return c.Err()
		case <-ctx.Done():
			return fmt.Errorf("client: %d of %d bytes are mapped: %w", have, bytes, ctx.Err())
		}
	}
}

// Bytes views size bytes at a location of a mapped arena.
func (c *Client) Bytes(at wire.Location, size uint64) ([]byte, error) {
	a, ok := c.Arena(at.Arena())
	if !ok {
		return nil, fmt.Errorf("client: arena %d is not mapped", at.Arena())
	}
	length := uint64(len(a.Bytes))
	if at.Offset() > length || size > length-at.Offset() {
		return nil, fmt.Errorf("client: %d bytes at %d are outside arena %d of %d bytes", size, at.Offset(), a.ID, length)
	}
	return a.Bytes[at.Offset() : at.Offset()+size : at.Offset()+size], nil
}

// Locations returns where one part of each page lies, in the order of the runs.
func Locations(runs []wire.Run, part uint16, partBytes uint64) []wire.Location {
	locations := make([]wire.Location, 0, wire.CountRuns(runs, part))
	for _, r := range runs {
		if r.Part != part {
			continue
		}
		for i := range uint64(r.Count) {
			locations = append(locations, r.First+wire.Location(i*partBytes))
		}
	}
	return locations
}

// addArena maps a pushed arena and tells the Manager. A missing descriptor is a fault of the channel; a failed mapping is not.
func (c *Client) addArena(m *wire.Arena, from *source) error {
	descriptor, ok := from.take()
	if !ok {
		return wire.Errorf(wire.StatusMalformed, "arena %d came without a descriptor", m.Arena)
	}
	a, err := mapArena(m, descriptor)
	if err == nil && c.options.OnArena != nil {
		if err = c.options.OnArena(a); err != nil {
			err = errors.Join(err, unix.Munmap(a.Bytes))
		}
	}
	if err != nil {
		return c.Send(&wire.Mapped{Arena: m.Arena, Text: wire.Errorf(wire.StatusNotReady, "%v", err).Text})
	}
	if err := c.keepArena(a); err != nil {
		return errors.Join(err, unix.Munmap(a.Bytes))
	}
	return c.Send(&wire.Mapped{Arena: m.Arena, Ok: true})
}

// keepArena makes an arena findable before the Manager may name pages of it.
func (c *Client) keepArena(a *Arena) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.arenas[a.ID]; twice {
		return wire.Errorf(wire.StatusMalformed, "arena %d came twice", a.ID)
	}
	c.arenas[a.ID] = a
	close(c.mapped)
	c.mapped = make(chan struct{})
	return nil
}

// mapArena maps a descriptor and closes it: the mapping keeps the memory. A child of this process does not inherit it.
func mapArena(m *wire.Arena, descriptor int) (*Arena, error) {
	view, err := unix.Mmap(descriptor, 0, int(m.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if closing := unix.Close(descriptor); closing != nil && err == nil {
		err = errors.Join(closing, unix.Munmap(view))
	}
	if err != nil {
		return nil, fmt.Errorf("mapping arena %d of %d bytes: %w", m.Arena, m.Bytes, err)
	}
	if err := unix.Madvise(view, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(fmt.Errorf("keeping arena %d from children: %w", m.Arena, err), unix.Munmap(view))
	}
	return &Arena{ID: m.Arena, Node: m.Node, Bytes: view}, nil
}

func (c *Client) unmapAll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed error
	for id, a := range c.arenas {
		failed = errors.Join(failed, unix.Munmap(a.Bytes))
		delete(c.arenas, id)
	}
	return failed
}
