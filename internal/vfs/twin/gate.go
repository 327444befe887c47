package twin

import "sync"

// Gate holds operations until it is opened, in the order in which they came.
type Gate struct {
	operation Operation
	prefix    string

	mutex   sync.Mutex
	changed sync.Cond
	waiting []chan struct{}
	passes  int
	open    bool
}

// Gate returns a closed gate for an operation on files whose name begins with prefix.
func (d *Disk) Gate(operation Operation, prefix string) *Gate {
	g := &Gate{operation: operation, prefix: prefix}
	g.changed.L = &g.mutex
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.gates = append(d.gates, g)
	return g
}

// Wait returns when the gate holds so many operations at least.
func (g *Gate) Wait(operations int) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for len(g.waiting) < operations {
		g.changed.Wait()
	}
}

// Held is the number of operations that the gate holds.
func (g *Gate) Held() int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return len(g.waiting)
}

// Pass lets so many operations by: those that are held first, then those to come.
func (g *Gate) Pass(operations int) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.passes += operations
	for g.passes > 0 && len(g.waiting) > 0 {
		g.passes--
		g.release()
	}
}

// Open lets all operations by, from now on.
func (g *Gate) Open() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.open = true
	for len(g.waiting) > 0 {
		g.release()
	}
}

func (g *Gate) release() {
	close(g.waiting[0])
	g.waiting = g.waiting[1:]
}

// enter returns when the operation may go by.
func (g *Gate) enter() {
	g.mutex.Lock()
	if g.open || g.passes > 0 {
		if !g.open {
			g.passes--
		}
		g.mutex.Unlock()
		return
	}
	passed := make(chan struct{})
	g.waiting = append(g.waiting, passed)
	g.changed.Broadcast()
	g.mutex.Unlock()
	<-passed
}
