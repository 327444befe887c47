// Package ssd is the SSD tier: a store of pages in one or more folders, each a volume with a payload file, an index log and a superblock.
//
// It owns which pages are on disk, the space of the payload files and who loses it, the order of barriers that makes a page's record never older than
// its bytes, and the queues of reads and writes with their bounds. Every read is checked against the digest of what was written. It does not know what
// a page means, who wants it or which memory it lies in: Config.Memory says where.
//
// The way of a write: queued → digest, space → payload and header block → barrier → record → barrier → visible → Done. A page is visible only when its
// record is durable, and space is written anew only when the drop of what it held is durable. What fails on the way was never visible.
//
// Concurrency: one mutex guards everything, held shortly and never during I/O. Calls on the request path (Namespace, DropNamespace, Clear, Stored,
// Wanted, ReadRoom, Demanded, Read, Write) do not block; Done comes from a goroutine of the store that holds no lock. A volume has two goroutines of its
// own: one gives pages digest and space, some ahead, so that the end of one transfer begins the next; the other commits. Digests of reads are computed by
// a few that all volumes share. The store calls nobody else's lock with its own held.
package ssd

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"orbitkv/internal/blockio"
	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
)

// Store is the tier. Create it with Open.
type Store struct {
	mu      sync.Mutex
	config  Config
	volumes []*volume

	namespaces map[uint32]*namespace // by handle
	identities map[facts]*namespace
	lives      map[uint32]*life
	lastHandle uint32
	lastLife   uint32

	writes      map[pageKey]*write // from Write to visible
	held        uint64             // bytes of these
	readQueued  uint64             // bytes of reads that have not begun
	outstanding int                // reads and writes whose Done has not returned
	largestPage uint64             // of the namespaces that were ever registered, bytes
	closing     bool
	drained     bool // pages that wait to be written end unwritten

	submissions []submission // to be handed over when the mutex is given up
	ends        []func()     // calls of Done, by a goroutine of their own then
	says        []func()     // and lines of the log
	idle        *sync.Cond   // outstanding became zero

	checks    chan *read // read, and to be compared with their digest
	checkers  sync.WaitGroup
	tasks     sync.WaitGroup
	running   context.Context // until Close
	halt      context.CancelFunc
	counters  counters
	recovered recovered
	opened    time.Time
}

// submission is a transfer on its way to an engine.
type submission struct {
	engine   blockio.Engine
	transfer *blockio.Transfer
}

// pageKey names a page that is being written.
type pageKey struct {
	life  uint32
	group uint16
	key   Key
}

// recovered is what opening the volumes found.
type recovered struct {
	pages    uint64
	took     time.Duration
	problems map[string]uint64
}

const checkersMax = 8 // goroutines that compute digests of reads

// Open opens every folder, or makes it a volume, and says what is stored. A folder that another process has, that is not OrbitKV's or that a newer
// version wrote is an error. A volume that cannot be read or written is off, with its reason in Status; an error only when all are.
func Open(config Config) (*Store, error) {
	config = config.withDefaults()
	if err := config.check(); err != nil {
		return nil, err
	}
	if config.Seed == 0 {
		var seed [8]byte
		crand.Read(seed[:])
		config.Seed = binary.LittleEndian.Uint64(seed[:])
	}
	s := &Store{
		config: config, namespaces: map[uint32]*namespace{}, identities: map[facts]*namespace{}, lives: map[uint32]*life{},
		writes: map[pageKey]*write{}, counters: newCounters(), opened: config.Now(), recovered: recovered{problems: map[string]uint64{}},
	}
	s.running, s.halt = context.WithCancel(context.Background())
	s.idle = sync.NewCond(&s.mu)
	if err := s.openVolumes(); err != nil {
		return nil, errors.Join(err, s.shut())
	}
	if !config.looks() {
		s.mu.Lock()
		s.boundNamespaces(NamespacesMax) // folders that came together may have more
		s.leave()
	}
	s.start()
	return s, nil
}

// start lets the goroutines run.
func (s *Store) start() {
	s.checks = make(chan *read, len(s.volumes)*2*s.config.ReadInflight)
	for range min(checkersMax, runtime.GOMAXPROCS(0)) {
		s.checkers.Go(s.check)
	}
	s.tasks.Go(s.keep)
	for _, v := range s.volumes {
		if !v.on() {
			continue
		}
		v.tasks.Go(v.fill)
		v.tasks.Go(v.commit)
		if s.config.ScrubBytesPerSecond > 0 {
			s.tasks.Go(v.scrub)
		}
	}
}

// leave gives the mutex up, then hands over what the call decided to submit and lets the calls of Done and the lines of the log go.
func (s *Store) leave() {
	submissions, ends, says := s.submissions, s.ends, s.says
	s.submissions, s.ends, s.says = nil, nil, nil
	s.mu.Unlock()
	for _, one := range submissions {
		one.engine.Submit(one.transfer)
	}
	if len(ends)+len(says) > 0 {
		go func() {
			for _, say := range says {
				say()
			}
			for _, end := range ends {
				s.told(end)
			}
		}()
	}
}

// say logs a line once the mutex is given up: whoever reads the log must not hold up a request.
func (s *Store) say(level slog.Level, text string, facts ...any) {
	s.says = append(s.says, func() { s.config.Log.Log(context.Background(), level, text, facts...) })
}

// told calls Done and counts the transfer as ended. Nobody waits for it longer.
func (s *Store) told(done func()) {
	done()
	s.mu.Lock()
	s.outstanding--
	if s.outstanding == 0 {
		s.idle.Broadcast()
	}
	s.mu.Unlock()
}

// rest gives the mutex up within a long call and takes it again. Whatever the call knew may have changed.
func (s *Store) rest() {
	s.leave()
	runtime.Gosched()
	s.mu.Lock()
}

// Stored says whether a page can be read.
func (s *Store) Stored(handle uint32, group uint16, key *Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, _, found := s.find(s.namespaces[handle], group, key)
	return found && !v.hangs()
}

// Wanted says whether Write would take a page as far as the page itself goes: it is neither stored nor being written. Write says, and counts, what else
// stands against it.
func (s *Store) Wanted(handle uint32, group uint16, key *Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[handle]
	_, _, found := s.find(ns, group, key)
	return !found && s.unwritten(ns, group, key)
}

// unwritten says whether a namespace is there and a page of it is not being written.
func (s *Store) unwritten(ns *namespace, group uint16, key *Key) bool {
	return ns != nil && s.writes[pageKey{ns.life.number, group, *key}] == nil
}

// find returns the volume and the record of a page that can be read. A page is on one volume at most.
func (s *Store) find(ns *namespace, group uint16, key *Key) (*volume, index.Handle, bool) {
	if ns == nil {
		return nil, index.Handle{}, false
	}
	for _, v := range s.volumes {
		if !v.readable() {
			continue
		}
		if h, _, found := v.index.Find(ns.life.number, group, key); found {
			return v, h, true
		}
	}
	return nil, index.Handle{}, false
}

// Demanded says that a request asked for a page: it becomes the one used last of the retained class. A page that is not stored is passed over; lacking
// says whether Write would take it, as Wanted does.
func (s *Store) Demanded(handle uint32, group uint16, key *Key) (lacking bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[handle]
	v, h, found := s.find(ns, group, key)
	if found {
		s.counters.demanded++
		v.retain(h)
	}
	return !found && s.unwritten(ns, group, key)
}

// Drop forgets a page whose bytes were wrong before they were written, so that their digest does not tell. A read of it that has begun ends as it may.
func (s *Store) Drop(handle uint32, group uint16, key *Key) {
	s.mu.Lock()
	defer s.leave()
	v, h, found := s.find(s.namespaces[handle], group, key)
	if !found {
		return
	}
	v.discard(h, ReasonDigest)
	if !v.on() {
		s.say(slog.LevelError, "a page whose bytes were wrong before they were written is on a volume of the SSD cache that takes no writes: it may come back with a restart, "+
			"unless the cache is cleared or the file of the index removed before", "volume", v.name, "file", format.IndexName)
	}
}

// Clear forgets every page: none can be read when it returns, and what is being written will never be. It is durable with the next commit, which
// begins at once; see AwaitClear.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.leave()
	for _, ns := range s.namespaces {
		if !ns.life.empty() {
			s.endLife(ns.life)
			ns.life = s.newLife(ns)
		}
	}
	for _, v := range s.volumes {
		switch {
		case v.readable():
			v.note(op{kind: opClear})
			v.clears++
			v.hurry()
		case v.state == volumeOff:
			v.forget()
		}
	}
}

// AwaitClear returns when every Clear before it is durable, or when ctx ends. The error names the volumes of which that is not known: their pages may
// be back after a restart.
func (s *Store) AwaitClear(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, v := range s.volumes {
			v.changed.Broadcast()
		}
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, v := range s.volumes {
		for v.clearing() && ctx.Err() == nil {
			v.changed.Wait()
		}
		if v.clearing() {
			errs = append(errs, fmt.Errorf("ssd: %s is cleared, but its disk did not say in time that it will stay so: its pages may come back with a restart; clear again before one: %w", v.name, ctx.Err()))
		} else if v.uncleared != nil {
			errs = append(errs, fmt.Errorf("ssd: %w", v.uncleared))
		}
	}
	return errors.Join(errs...)
}

// Close writes what is queued, for drainWait at most, waits for everything that was submitted, makes durable what was written, and leaves in each index
// log what is stored in the order of its use. Reads that have not begun end with the reason closed, and so do writes that were not reached.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return errors.New("ssd: the store is closed already")
	}
	s.closing = true
	s.halt()
	for _, v := range s.volumes {
		v.refuseReads(ReasonClosed)
		v.changed.Broadcast()
	}
	s.leave()
	end := time.AfterFunc(drainWait, s.endDrain)
	defer end.Stop()
	s.tasks.Wait()
	for _, v := range s.volumes {
		v.tasks.Wait()
	}
	s.mu.Lock()
	for s.outstanding > 0 {
		s.idle.Wait()
	}
	unwritten := s.counters.writeFailures[ReasonClosed]
	s.mu.Unlock()
	close(s.checks)
	s.checkers.Wait()
	err := s.shut()
	if unwritten > 0 {
		s.config.Log.Warn("SSD tier closed: the disk was too slow for the pages that waited in its queue, they are computed again", "pages_not_written", unwritten,
			"waited", drainWait)
	} else {
		s.config.Log.Info("SSD tier closed", "pages_not_written", unwritten)
	}
	return err
}

// endDrain lets go what Close would write still.
func (s *Store) endDrain() {
	s.mu.Lock()
	defer s.leave()
	s.drained = true
	for _, v := range s.volumes {
		v.refuseWaiting(ReasonClosed)
		v.changed.Broadcast()
	}
}

// shut closes what the volumes have open. No transfer is under way.
func (s *Store) shut() error {
	var errs []error
	for _, v := range s.volumes {
		if err := v.shut(); err != nil {
			errs = append(errs, fmt.Errorf("ssd: closing %s: %w", v.name, err))
		}
	}
	return errors.Join(errs...)
}
