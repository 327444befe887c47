package ssd

import (
	"time"

	"orbitkv/internal/ssd/format"
)

// facts are what makes two namespaces the same.
type facts struct {
	identity  [32]byte
	epoch     uint64
	pageBytes uint64
}

// namespace is one identity of bytes.
type namespace struct {
	facts
	handle  uint32
	life    *life
	claimed bool     // Namespace named it since the store was opened, and nobody released it
	numbers []uint32 // by volume: what its records call the namespace, zero while it has none
}

// life is what a namespace's pages belong to: a new one begins when the store is cleared, so that all older pages are unreachable at once, whatever
// their number. The index knows a life by its number.
type life struct {
	number    uint32
	namespace *namespace
	dead      bool
	pages     []uint64 // by volume: records in its index, retired ones that are being read too
	writes    int      // from Write to the end
}

// extent is what each of its pages occupies in a payload, in bytes.
func (l *life) extent() uint64 { return format.ExtentBytes(l.namespace.pageBytes) }

func (l *life) empty() bool {
	for _, pages := range l.pages {
		if pages > 0 {
			return false
		}
	}
	return l.writes == 0
}

// Namespace makes a namespace known, or finds it, and returns its handle. Zero, which names none, when the table is full of registered ones. Others make
// room, those that were made first before all.
func (s *Store) Namespace(identity [32]byte, epoch, pageBytes uint64) uint32 {
	s.mu.Lock()
	defer s.leave()
	f := facts{identity, epoch, pageBytes}
	ns := s.identities[f]
	if ns == nil {
		if !s.boundNamespaces(NamespacesMax - 1) {
			s.counters.namespaceFull++
			return 0
		}
		ns = s.newNamespace(f)
	}
	ns.claimed = true
	s.largestPage = max(s.largestPage, pageBytes)
	return ns.handle
}

func (s *Store) newNamespace(f facts) *namespace {
	s.lastHandle++
	ns := &namespace{facts: f, handle: s.lastHandle, numbers: make([]uint32, len(s.config.Volumes))}
	ns.life = s.newLife(ns)
	s.namespaces[ns.handle] = ns
	s.identities[f] = ns
	return ns
}

func (s *Store) newLife(ns *namespace) *life {
	s.lastLife++
	l := &life{number: s.lastLife, namespace: ns, pages: make([]uint64, len(s.config.Volumes))}
	s.lives[l.number] = l
	return l
}

// DropNamespace forgets a namespace and its pages: none can be read when it returns, and what is being written will never be. Their space comes
// back in steps.
func (s *Store) DropNamespace(handle uint32) {
	s.mu.Lock()
	defer s.leave()
	if ns := s.namespaces[handle]; ns != nil {
		s.dropNamespace(ns)
	}
}

func (s *Store) dropNamespace(ns *namespace) {
	delete(s.namespaces, ns.handle)
	delete(s.identities, ns.facts)
	s.endLife(ns.life)
	for i, v := range s.volumes {
		if ns.numbers[i] != 0 && v.readable() {
			v.note(op{kind: opDropNamespace, number: ns.numbers[i]})
			v.hurry()
		}
	}
}

// ReleaseNamespace says that nobody uses a namespace until Namespace finds it again. Its pages stay until it makes room for another one.
func (s *Store) ReleaseNamespace(handle uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns := s.namespaces[handle]; ns != nil {
		ns.claimed = false
	}
}

// endLife makes the pages of a life unreachable. The volumes sweep their records.
func (s *Store) endLife(l *life) {
	l.dead = true
	for i, v := range s.volumes {
		if v.readable() && l.pages[i] > 0 {
			v.mustSweep = true
			v.hurry()
		}
	}
	s.forgetLife(l)
}

// forgetLife ends a dead life that nothing belongs to any more.
func (s *Store) forgetLife(l *life) {
	if l.dead && l.empty() {
		delete(s.lives, l.number)
	}
}

// boundNamespaces drops namespaces that nobody uses until there are so many at most. It says whether that was to be had.
func (s *Store) boundNamespaces(most int) bool {
	for len(s.namespaces) > most {
		if !s.dropUnclaimed() {
			return false
		}
	}
	return true
}

// dropUnclaimed drops the namespace that was made first of those that nobody uses. It says whether there was one.
func (s *Store) dropUnclaimed() bool {
	var oldest *namespace
	for _, ns := range s.namespaces {
		if !ns.claimed && (oldest == nil || ns.handle < oldest.handle) {
			oldest = ns
		}
	}
	if oldest == nil {
		return false
	}
	s.dropNamespace(oldest)
	return true
}

// abandoned says whether a namespace is one of an epoch that nobody has registered: an epoch belongs to one life of an engine, and its pages are the
// first victims.
func (ns *namespace) abandoned() bool { return ns.epoch != 0 && !ns.claimed }

// keep drops what nobody came back for, and looks whether the files are there, the devices answer and a volume is to be tried again.
func (s *Store) keep() {
	ticker := time.NewTicker(housekeepingTick)
	defer ticker.Stop()
	presence := time.NewTicker(presenceTick)
	defer presence.Stop()
	for {
		select {
		case <-s.running.Done():
			return
		case <-ticker.C:
			s.dropAbandoned()
		case <-presence.C:
			for _, v := range s.volumes {
				v.checkPresence()
				v.checkHanging()
				v.checkRetry()
			}
		}
	}
}

// dropAbandoned drops namespaces of an epoch that nobody registered within unclaimedFor of the start.
func (s *Store) dropAbandoned() {
	s.mu.Lock()
	defer s.leave()
	if s.config.Now().Sub(s.opened) < unclaimedFor {
		return
	}
	for _, ns := range s.namespaces {
		if ns.abandoned() {
			s.dropNamespace(ns)
		}
	}
}
