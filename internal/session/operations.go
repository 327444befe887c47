package session

import (
	"math"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// Records of one part of a reserved answer: the two arrays share a frame.
const (
	reservedGrantsMax = wire.FrameGrantsMax
	reservedRunsMax   = 2944
)

// query takes one part of a query and answers the last one.
func (c *conn) query(id uint64, body []byte) error {
	m := &c.scratch.query
	if err := m.Decode(body); err != nil {
		return err
	}
	keys, whole, err := c.parts.add(part{
		key: partKey{wire.TypeQuery, m.Operation, m.Revision}, index: m.Part, parts: m.Parts,
		namespace: m.Namespace, group: m.Group, instance: m.Instance, request: m.Request, keys: m.Keys,
	})
	if done, err := c.unfinished(id, wire.TypeQuery, whole, err); done {
		return err
	}
	result, err := c.server.cache.SubmitQuery(c.session, cache.Query{
		Operation: m.Operation, Revision: m.Revision, Namespace: m.Namespace, Group: m.Group, Instance: m.Instance, Request: m.Request, Keys: keys,
	})
	return c.answerResult(id, result, err)
}

// warm takes one part of a hint and answers the last one.
func (c *conn) warm(id uint64, body []byte) error {
	m := &c.scratch.warm
	if err := m.Decode(body); err != nil {
		return err
	}
	keys, whole, err := c.parts.add(part{
		key: partKey{wire.TypeWarm, m.Ticket, 0}, index: m.Part, parts: m.Parts,
		namespace: m.Namespace, instance: m.Instance, request: m.Request, keys: m.Keys,
	})
	if done, err := c.unfinished(id, wire.TypeWarm, whole, err); done {
		return err
	}
	warmed, err := c.server.cache.WarmPrefix(c.session, cache.Warm{
		Ticket: m.Ticket, Namespace: m.Namespace, Instance: m.Instance, Request: m.Request, Keys: keys,
	})
	if err != nil {
		return c.fail(id, err)
	}
	return c.answer(id, &wire.Warmed{Outcome: warmed.Outcome, Pages: warmed.Pages})
}

// unfinished handles a part that is not the last of an operation that can be asked for. Done says that nothing is left to do for it.
func (c *conn) unfinished(id uint64, typ wire.Type, whole bool, err error) (done bool, fault error) {
	if !whole && err != nil {
		return true, err
	}
	if fault := checkPartID(id, whole, typ); fault != nil {
		return true, fault
	}
	if err != nil {
		return true, c.fail(id, err)
	}
	return !whole, nil
}

// checkPartID: only the last part of an operation is answered, so only it carries an id.
func checkPartID(id uint64, last bool, typ wire.Type) error {
	if last != (id != 0) {
		return wire.Errorf(wire.StatusMalformed, "the id of a %v is zero on all parts but the last", typ)
	}
	return nil
}

func (c *conn) poll(id uint64, body []byte) error {
	var m wire.Poll
	if err := m.Decode(body); err != nil {
		return err
	}
	result, err := c.server.cache.PollQuery(c.session, m.Operation, m.Revision)
	return c.answerResult(id, result, err)
}

func (c *conn) stop(id uint64, body []byte) error {
	var m wire.Stop
	if err := m.Decode(body); err != nil {
		return err
	}
	result, err := c.server.cache.StopQuery(c.session, m.Operation, m.Revision)
	return c.answerResult(id, result, err)
}

// answerResult sends the state of a query in as many parts as its runs need.
func (c *conn) answerResult(id uint64, r cache.Result, err error) error {
	if err != nil {
		return c.fail(id, err)
	}
	m := wire.Result{
		Operation: r.Operation, Revision: r.Revision, Outcome: r.Outcome, Cut: r.Cut, Pages: r.Pages, NotMapped: r.NotMapped, Lease: r.Lease,
		ExpectedUs: uint32(min(r.Expected.Microseconds(), math.MaxUint32)), Missing: r.Missing,
		Parts: uint16(partsOf(len(r.Runs), wire.FrameRunsMax)),
	}
	c.buf = c.buf[:0]
	for ; m.Part < m.Parts; m.Part++ {
		m.Runs = piece(r.Runs, int(m.Part), wire.FrameRunsMax)
		if c.buf, err = m.Append(c.buf, id); err != nil {
			return err
		}
	}
	return c.sendParts()
}

// reserve takes one part of a reserve and answers the last one.
func (c *conn) reserve(id uint64, body []byte) error {
	m := &c.scratch.reserve
	if err := m.Decode(body); err != nil {
		return err
	}
	keys, whole, err := c.parts.add(part{
		key: partKey{wire.TypeReserve, m.Operation, m.Revision}, index: m.Part, parts: m.Parts,
		namespace: m.Namespace, group: m.Group, instance: m.Instance, keys: m.Keys,
	})
	if done, err := c.unfinished(id, wire.TypeReserve, whole, err); done {
		return err
	}
	reserved, err := c.server.cache.Reserve(c.session, cache.Reserve{
		Operation: m.Operation, Revision: m.Revision, Namespace: m.Namespace, Group: m.Group, Instance: m.Instance, Keys: keys,
	})
	if err != nil {
		return c.fail(id, err)
	}
	return c.answerReserved(id, m.Operation, m.Revision, reserved)
}

// answerReserved sends grants in as many parts as they and their runs need.
func (c *conn) answerReserved(id, operation uint64, revision uint32, r cache.Reserved) (err error) {
	m := wire.Reserved{
		Operation: operation, Revision: revision, Pages: r.Pages, Reservation: r.Reservation,
		Parts: uint16(max(partsOf(len(r.Grants), reservedGrantsMax), partsOf(len(r.Runs), reservedRunsMax))),
	}
	c.buf = c.buf[:0]
	for ; m.Part < m.Parts; m.Part++ {
		m.Grants = piece(r.Grants, int(m.Part), reservedGrantsMax)
		m.Runs = piece(r.Runs, int(m.Part), reservedRunsMax)
		if c.buf, err = m.Append(c.buf, id); err != nil {
			return err
		}
	}
	return c.sendParts()
}

// sendParts sends the parts of one answer and keeps no more memory than one frame needs.
func (c *conn) sendParts() error {
	err := c.out.send(c.buf)
	if cap(c.buf) > wire.FrameBytesMax {
		c.buf = nil
	}
	return err
}

// partsOf is the number of parts of n records, at least one.
func partsOf(n, most int) int { return max(1, (n+most-1)/most) }

// piece is the records of one part.
func piece[T any](records []T, part, most int) []T {
	from := min(part*most, len(records))
	return records[from:min(from+most, len(records))]
}
