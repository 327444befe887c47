package session

import (
	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// handle takes one frame after hello. An error ends the session: a fault of the frame, or of a one-way call, whose sender acts as if
// it had succeeded. A call that fails in any other way is answered.
func (c *conn) handle(h wire.Header, body []byte) error {
	switch h.Type {
	case wire.TypeQuery:
		return c.query(h.ID, body)
	case wire.TypeReserve:
		return c.reserve(h.ID, body)
	case wire.TypeWarm:
		return c.warm(h.ID, body)
	case wire.TypeHello:
		return wire.Errorf(wire.StatusMalformed, "this session is open already: say hello once a connection")
	case wire.TypePing:
		var m wire.Ping
		if err := m.Decode(body); err != nil {
			return err
		}
		return c.answer(h.ID, &wire.Pong{Nonce: m.Nonce})
	case wire.TypePoll, wire.TypeStop, wire.TypeAttach, wire.TypeDetach, wire.TypeRegister, wire.TypeEpoch, wire.TypeResume, wire.TypePrivate:
		if h.ID == 0 {
			return wire.Errorf(wire.StatusMalformed, "%v has id zero, which no answer can carry", h.Type)
		}
		return c.call(h, body)
	}
	if h.ID != 0 {
		return wire.Errorf(wire.StatusMalformed, "%v is not answered, its id must be zero", h.Type)
	}
	return c.oneWay(h.Type, body)
}

// oneWay handles a frame that has no answer: its error is a violation (OWNERSHIP: the session closes).
func (c *conn) oneWay(typ wire.Type, body []byte) error {
	manager, id := c.server.cache, c.session
	switch typ {
	case wire.TypeBegin:
		var m wire.Begin
		return then(m.Decode(body), func() error { return manager.Begin(id, m.Lease, m.Rank, m.Pages) })
	case wire.TypeRelease:
		var m wire.Release
		return then(m.Decode(body), func() error { return manager.Release(id, m.Lease, m.Rank) })
	case wire.TypeRevoked:
		var m wire.Revoked
		return then(m.Decode(body), func() error { return manager.Revoked(id, m.Lease, m.Yielded) })
	case wire.TypeRestored:
		m := &c.scratch.restored
		return then(m.Decode(body), func() error { return manager.Restored(id, m.Lease, m.Rank, m.Ok, m.Bytes, m.Ranges) })
	case wire.TypeCommitted:
		m := &c.scratch.committed
		return then(m.Decode(body), func() error { return manager.Committed(id, m.Reservation, m.Rank, m.Ranges) })
	case wire.TypeAbandoned:
		m := &c.scratch.abandoned
		return then(m.Decode(body), func() error { return manager.Abandoned(id, m.Reservation, m.Rank, m.Ranges) })
	case wire.TypeCancel:
		var m wire.Cancel
		return then(m.Decode(body), func() error { return manager.CancelQuery(id, m.Operation, m.Revision) })
	case wire.TypeCancelWarm:
		var m wire.CancelWarm
		return then(m.Decode(body), func() error { return manager.CancelWarm(id, m.Ticket) })
	case wire.TypeMapped:
		var m wire.Mapped
		return then(m.Decode(body), func() error { return c.mapped(m) })
	case wire.TypePong:
		var m wire.Pong
		return then(m.Decode(body), func() error {
			manager.Heard(id)
			return nil
		})
	}
	return wire.Errorf(wire.StatusMalformed, "%v is not a frame that a client sends", typ)
}

// then runs next when the frame could be decoded.
func then(decoded error, next func() error) error {
	if decoded != nil {
		return decoded
	}
	return next()
}

func (c *conn) mapped(m wire.Mapped) error {
	if !m.Ok {
		c.server.log.Warn("a rank cannot use an arena: its pages are not named to the instance", "pid", c.peer.pid, "arena", m.Arena, "error", m.Text)
	}
	return c.server.cache.Mapped(c.session, m.Arena, m.Ok, m.Text)
}

// call handles a frame that is always answered by one frame.
func (c *conn) call(h wire.Header, body []byte) error {
	var reply wire.Message
	var err error
	switch h.Type {
	case wire.TypePoll:
		return c.poll(h.ID, body)
	case wire.TypeStop:
		return c.stop(h.ID, body)
	case wire.TypeAttach:
		reply, err = c.attach(body)
	case wire.TypeDetach:
		reply, err = c.detach(body)
	case wire.TypeRegister:
		reply, err = c.register(body)
	case wire.TypeEpoch:
		reply, err = c.epoch(body)
	case wire.TypeResume:
		reply, err = c.resume(body)
	case wire.TypePrivate:
		reply, err = c.private(body)
	}
	if err != nil {
		return c.fail(h.ID, err)
	}
	if err := c.answer(h.ID, reply); err != nil {
		return err
	}
	if h.Type == wire.TypeAttach && !c.attached.Swap(true) {
		c.out.signal() // the arenas follow
	}
	return nil
}

func (c *conn) attach(body []byte) (wire.Message, error) {
	var m wire.Attach
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	ranks, err := c.server.cache.Attach(c.session, cache.Attach{
		Instance: m.Instance, Rank: m.Rank, World: m.World, Storage: m.Storage, SliceBytes: m.SliceBytes, NUMA: int(m.NUMA),
		Writer: m.Writer, Backend: m.Backend, Epoch: m.Epoch, Facts: m.Facts,
	})
	if err != nil {
		c.server.log.Warn("attach refused", "pid", c.peer.pid, "instance", m.Instance, "rank", m.Rank, "error", err)
		return nil, err
	}
	c.server.log.Info("rank attached", "pid", c.peer.pid, "instance", m.Instance, "rank", m.Rank, "world", m.World,
		"slice_bytes", m.SliceBytes, "backend", m.Backend, "writer", m.Writer, "attached", ranks)
	return &wire.Done{Value: uint64(ranks)}, nil
}

func (c *conn) detach(body []byte) (wire.Message, error) {
	var m wire.Detach
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	err := c.server.cache.Detach(c.session, m.Instance)
	if err == nil {
		c.server.log.Info("detached", "pid", c.peer.pid, "instance", m.Instance)
	}
	return &wire.Done{}, err
}

func (c *conn) register(body []byte) (wire.Message, error) {
	var m wire.Register
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	r, err := c.server.cache.Register(c.session, m.Instance, m.Rank)
	if err == nil {
		c.server.log.Info("instance registered", "pid", c.peer.pid, "instance", m.Instance, "rank", m.Rank, "namespace", r.Namespace, "page_bytes", r.PageBytes)
	}
	return registered(r), err
}

func (c *conn) epoch(body []byte) (wire.Message, error) {
	var m wire.Epoch
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	r, err := c.server.cache.NewEpoch(c.session, m.Instance, m.Epoch)
	if err == nil {
		c.server.log.Info("new epoch", "pid", c.peer.pid, "instance", m.Instance, "namespace", r.Namespace)
	}
	return registered(r), err
}

func registered(r cache.Registered) wire.Message {
	return &wire.Registered{
		Namespace: r.Namespace, Epoch: r.Epoch, PageBytes: r.PageBytes, BudgetBytes: r.BudgetBytes, PartBytes: r.PartBytes, Slices: r.Slices,
	}
}

func (c *conn) resume(body []byte) (wire.Message, error) {
	var m wire.Resume
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	leases, reservations, err := c.server.cache.Resume(c.session, m.Token, m.Leases, m.Reservations)
	return &wire.Resumed{Leases: leases, Reservations: reservations}, err
}

func (c *conn) private(body []byte) (wire.Message, error) {
	var m wire.Private
	if err := m.Decode(body); err != nil {
		return nil, err
	}
	if !m.Open {
		return &wire.Done{}, c.server.cache.ClosePrivate(c.session)
	}
	r, err := c.server.cache.OpenPrivate(c.session, m.SliceBytes)
	return registered(r), err
}
