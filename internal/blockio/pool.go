package blockio

import "sync"

// Pool runs transfers on threads that each wait for one read or write. It takes any File.
//
// Its queue has no bound of its own: whoever submits bounds what is unfinished.
type Pool struct {
	mutex      sync.Mutex
	work       sync.Cond // a transfer is queued, or the pool closes
	queue      []*Transfer
	unfinished int // queued or running, or their Done is
	closing    bool
	threads    sync.WaitGroup
}

// NewPool starts a pool of so many threads, one at least.
func NewPool(threads int) *Pool {
	if threads < 1 {
		panic("blockio: a pool needs a thread")
	}
	p := &Pool{}
	p.work.L = &p.mutex
	for range threads {
		p.threads.Go(p.run)
	}
	return p
}

// Name is "pool".
func (p *Pool) Name() string { return "pool" }

// Submit queues a transfer.
func (p *Pool) Submit(t *Transfer) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closing && p.unfinished == 0 {
		panic("blockio: a transfer was submitted to a closed pool")
	}
	p.unfinished++
	p.queue = append(p.queue, t)
	p.work.Signal()
}

// Close waits for every transfer that was submitted, and for those that their Done submits (I3).
func (p *Pool) Close() {
	p.mutex.Lock()
	p.closing = true
	p.work.Broadcast()
	p.mutex.Unlock()
	p.threads.Wait()
}

func (p *Pool) run() {
	for t := p.next(); t != nil; t = p.next() {
		if t.Write {
			t.Done(t.File.WriteAt(t.Buffers, t.Offset))
		} else {
			t.Done(t.File.ReadAt(t.Buffers, t.Offset))
		}
		p.mutex.Lock()
		p.unfinished--
		p.mutex.Unlock()
	}
}

// next waits for a transfer; nil when the pool closes and none is queued. A Done that submits one more then leaves it to its own thread at least.
func (p *Pool) next() *Transfer {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for len(p.queue) == 0 {
		if p.closing {
			return nil
		}
		p.work.Wait()
	}
	t := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return t
}
