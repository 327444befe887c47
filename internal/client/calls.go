package client

import (
	"context"

	"orbitkv/internal/wire"
)

// Call sends a frame that is answered by one frame and returns the answer. The error is a *wire.Error when the Manager refused, else
// why there is no answer.
func (c *Client) Call(ctx context.Context, m wire.Message) (wire.Message, error) {
	return c.call(ctx, m)
}

func answerTo[T wire.Message](ctx context.Context, c *Client, m wire.Message) (T, error) {
	return as[T](c.call(ctx, m))
}

// as passes on an answer of the expected type; another one breaks the protocol.
func as[T wire.Message](answer wire.Message, err error) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	typed, ok := answer.(T)
	if !ok {
		return none, unexpected(answer)
	}
	return typed, nil
}

// Attach joins an instance as one rank and returns how many of its ranks have attached.
func (c *Client) Attach(ctx context.Context, a wire.Attach) (ranks uint64, err error) {
	done, err := answerTo[*wire.Done](ctx, c, &a)
	if err != nil {
		return 0, err
	}
	return done.Value, nil
}

// Detach gives everything of the instance back; no copy may run.
func (c *Client) Detach(ctx context.Context, instance string) error {
	_, err := answerTo[*wire.Done](ctx, c, &wire.Detach{Instance: instance})
	return err
}

// Register returns the namespace of an instance that this session schedules for one rank, or for all with AllRanks; StatusNotReady until
// every rank has attached.
func (c *Client) Register(ctx context.Context, instance string, rank uint16) (*wire.Registered, error) {
	return answerTo[*wire.Registered](ctx, c, &wire.Register{Instance: instance, Rank: rank})
}

// NewEpoch starts a new epoch of an instance's namespace.
func (c *Client) NewEpoch(ctx context.Context, instance string, epoch uint64) (*wire.Registered, error) {
	return answerTo[*wire.Registered](ctx, c, &wire.Epoch{Instance: instance, Epoch: epoch})
}

// OpenPrivate opens the session's private namespace with pages of one slice.
func (c *Client) OpenPrivate(ctx context.Context, sliceBytes uint64) (*wire.Registered, error) {
	return answerTo[*wire.Registered](ctx, c, &wire.Private{Open: true, SliceBytes: sliceBytes})
}

// ClosePrivate drops the session's private namespace.
func (c *Client) ClosePrivate(ctx context.Context) error {
	_, err := answerTo[*wire.Done](ctx, c, &wire.Private{})
	return err
}

// Resume tells what of an old session of this process is still used, and returns what this session now holds of it.
func (c *Client) Resume(ctx context.Context, r wire.Resume) (*wire.Resumed, error) {
	return answerTo[*wire.Resumed](ctx, c, &r)
}

// Query asks for the longest prefix of q.Keys and sends as many parts as the keys need. Part and Parts are set here, and so are
// Operation and Revision where they are zero. The runs of a long result are joined.
func (c *Client) Query(ctx context.Context, q wire.Query) (*wire.Result, error) {
	w, err := c.startParts(len(q.Keys), &q.Operation, &q.Revision, func(part, parts uint16, first, end int) wire.Message {
		m := q
		m.Part, m.Parts, m.Keys = part, parts, q.Keys[first:end]
		return &m
	})
	if err != nil {
		return nil, err
	}
	return as[*wire.Result](c.wait(ctx, w))
}

// Reserve asks for extents to publish the pages of r.Keys into; parts, Operation and Revision are as in Query.
func (c *Client) Reserve(ctx context.Context, r wire.Reserve) (*wire.Reserved, error) {
	w, err := c.startParts(len(r.Keys), &r.Operation, &r.Revision, func(part, parts uint16, first, end int) wire.Message {
		m := r
		m.Part, m.Parts, m.Keys = part, parts, r.Keys[first:end]
		return &m
	})
	if err != nil {
		return nil, err
	}
	return as[*wire.Reserved](c.wait(ctx, w))
}

// startParts sends an operation in whole-page parts: all but the last carry id zero. They stay together on the wire, so that one
// session never has more than one unfinished operation of this client.
func (c *Client) startParts(keys int, operation *uint64, revision *uint32, part func(part, parts uint16, first, end int) wire.Message) (*call, error) {
	if keys > wire.OperationKeysMax {
		return nil, wire.Errorf(wire.StatusTooLarge, "an operation of %d keys is over the bound of %d", keys, wire.OperationKeysMax)
	}
	parts := max(1, (keys+wire.FrameKeysMax-1)/wire.FrameKeysMax)

	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if *operation == 0 {
		*operation = c.operation + 1
	}
	c.operation = max(c.operation, *operation)
	*revision = max(*revision, 1)
	w := c.expect()
	c.buf = c.buf[:0]
	for i := range parts {
		id := uint64(0)
		if i == parts-1 {
			id = w.id
		}
		first := i * wire.FrameKeysMax
		if err := c.append(part(uint16(i), uint16(parts), first, min(keys, first+wire.FrameKeysMax)), id); err != nil {
			c.forget(w)
			return nil, err
		}
	}
	return w, c.flush()
}

// Poll reads the state of a query.
func (c *Client) Poll(ctx context.Context, operation uint64, revision uint32) (*wire.Result, error) {
	return answerTo[*wire.Result](ctx, c, &wire.Poll{Operation: operation, Revision: revision})
}

// Stop takes what is there of a query that waits or is being read.
func (c *Client) Stop(ctx context.Context, operation uint64, revision uint32) (*wire.Result, error) {
	return answerTo[*wire.Result](ctx, c, &wire.Stop{Operation: operation, Revision: revision})
}

// Cancel drops interest in a query.
func (c *Client) Cancel(operation uint64, revision uint32) error {
	return c.Send(&wire.Cancel{Operation: operation, Revision: revision})
}

// Begin says that a consumer copies the first pages of a lease.
func (c *Client) Begin(lease uint64, rank uint16, pages uint32) error {
	return c.Send(&wire.Begin{Lease: lease, Rank: rank, Pages: pages})
}

// Release gives an unbegun lease back.
func (c *Client) Release(lease uint64, rank uint16) error {
	return c.Send(&wire.Release{Lease: lease, Rank: rank})
}

// Restored is the terminal report of a consumer's copy.
func (c *Client) Restored(r wire.Restored) error { return c.Send(&r) }

// Committed says that a rank's slices of these granted pages are complete.
func (c *Client) Committed(reservation uint64, rank uint16, ranges ...wire.Range) error {
	return c.Send(&wire.Committed{Reservation: reservation, Rank: rank, Ranges: ranges})
}

// Abandoned says that a rank's slices of these granted pages will not be written.
func (c *Client) Abandoned(reservation uint64, rank uint16, ranges ...wire.Range) error {
	return c.Send(&wire.Abandoned{Reservation: reservation, Rank: rank, Ranges: ranges})
}

// Ping waits for one round trip through the Manager's session.
func (c *Client) Ping(ctx context.Context) error {
	c.sendMu.Lock()
	w := c.expectPong()
	c.buf = c.buf[:0]
	err := c.append(&wire.Ping{Nonce: w.id}, 0)
	if err == nil {
		err = c.flush()
	}
	c.sendMu.Unlock()
	if err != nil {
		return err
	}
	_, err = c.wait(ctx, w)
	return err
}

func (c *Client) expectPong() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	w := newCall(c.lastID)
	c.pings[w.id] = w
	return w
}
