package journal

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"orbitkv/internal/vfs"
)

// oracle is what the caller of a journal may expect of it after a crash at this moment. Pages are told apart by their sequence, namespaces by their epoch.
type oracle struct {
	pages, begun  map[uint64]Put       // durable; said since the last commit
	spaces, named map[uint64]Namespace // likewise
	ended         map[uint64]bool      // pages that were dropped since the last commit
	closed        map[uint64]bool      // namespaces likewise
}

func newOracle() *oracle {
	return &oracle{
		pages: map[uint64]Put{}, begun: map[uint64]Put{}, spaces: map[uint64]Namespace{}, named: map[uint64]Namespace{},
		ended: map[uint64]bool{}, closed: map[uint64]bool{},
	}
}

// known says that what a recovery told is durable from now on.
func known(state State) *oracle {
	o := newOracle()
	for _, p := range state.Puts {
		o.pages[p.Sequence] = p
	}
	for _, n := range state.Namespaces {
		o.spaces[n.Epoch] = n
	}
	return o
}

// committed makes durable what was said.
func (o *oracle) committed() {
	maps.Copy(o.pages, o.begun)
	maps.Copy(o.spaces, o.named)
	maps.DeleteFunc(o.pages, func(sequence uint64, _ Put) bool { return o.ended[sequence] })
	maps.DeleteFunc(o.spaces, func(epoch uint64, _ Namespace) bool { return o.closed[epoch] })
	clear(o.begun)
	clear(o.named)
	clear(o.ended)
	clear(o.closed)
}

// check compares a recovery with the oracle: what is durable and was not dropped is there, nothing is there that is neither durable nor was
// said, and everything is as it was said.
func (o *oracle) check(state State) error {
	found := map[uint64]bool{}
	spaces := map[uint32]Namespace{}
	for _, n := range state.Namespaces {
		durable, was := o.spaces[n.Epoch]
		begun, is := o.named[n.Epoch]
		if !(was && n == durable) && !(is && n == begun) {
			return fmt.Errorf("namespace %+v came from nowhere", n)
		}
		if _, twice := spaces[n.Number]; twice {
			return fmt.Errorf("two namespaces have the number %d", n.Number)
		}
		spaces[n.Number], found[n.Epoch] = n, true
	}
	for epoch, n := range o.spaces {
		if !found[epoch] && !o.closed[epoch] {
			return fmt.Errorf("namespace %+v is lost", n)
		}
	}
	clear(found)
	keys := map[pageKey]bool{}
	for _, p := range state.Puts {
		key := p.pageKey()
		if keys[key] {
			return fmt.Errorf("two pages are stored under the key of %+v", p)
		}
		keys[key] = true
		durable, was := o.pages[p.Sequence]
		begun, is := o.begun[p.Sequence]
		if !(was && p == durable) && !(is && p == begun) {
			return fmt.Errorf("page %+v came from nowhere", p)
		}
		if spaces[p.Namespace].Identity != namespaceOf(uint64(p.Digest[15])).Identity {
			return fmt.Errorf("page %+v fell to namespace %+v", p, spaces[p.Namespace])
		}
		found[p.Sequence] = true
	}
	for sequence, p := range o.pages {
		if !found[sequence] && !o.ended[sequence] {
			return fmt.Errorf("page %+v is lost", p)
		}
	}
	return disjoint(state.Puts)
}

func disjoint(puts []Put) error {
	byOffset := slices.Clone(puts)
	slices.SortFunc(byOffset, func(x, y Put) int { return int(int64(x.Offset) - int64(y.Offset)) })
	for i := 1; i < len(byOffset); i++ {
		if byOffset[i].Offset < byOffset[i-1].span().end {
			return fmt.Errorf("pages %+v and %+v overlap", byOffset[i-1], byOffset[i])
		}
	}
	return nil
}

// script is a caller that keeps the rules of the order of writing: it puts no page where one lies whose drop is not durable.
type script struct {
	draw   *rand.Rand
	fs     vfs.FS
	j      *Journal
	o      *oracle
	taken  [payloadPages]bool
	spaces uint64 // namespaces that were made
	keys   uint64 // keys that were drawn
}

func newScript(seed uint64, fs vfs.FS) *script {
	return &script{draw: rand.New(rand.NewPCG(seed, 0)), fs: fs, o: newOracle()}
}

// open opens the volume and goes on from what it says, which it compares with the oracle.
func (s *script) open() error {
	j, state, err := Open(s.fs, volume, limits)
	if err != nil {
		return err
	}
	if err := s.o.check(state); err != nil {
		return err
	}
	s.j, s.o = j, known(state)
	s.takePlaces()
	return nil
}

// takePlaces marks the places where a page lies, or may lie after a crash.
func (s *script) takePlaces() {
	s.taken = [payloadPages]bool{}
	for _, pages := range []map[uint64]Put{s.o.pages, s.o.begun} {
		for _, p := range pages {
			s.taken[(p.Offset-at(0))/extentBytes] = true
		}
	}
}

// step does one thing, which the journal's error ends.
func (s *script) step() error {
	switch s.draw.IntN(12) {
	case 0:
		s.name()
	case 1:
		s.dropSpace()
	case 2, 3, 4, 5:
		for range 1 + s.draw.IntN(9) {
			s.put()
		}
	case 6, 7:
		for range 1 + s.draw.IntN(9) {
			s.drop()
		}
	case 8:
		return s.compact()
	case 9:
		if s.draw.IntN(4) == 0 {
			s.clear()
		}
	case 10:
		if s.draw.IntN(4) == 0 {
			return s.reopen()
		}
	}
	if s.draw.IntN(2) == 0 {
		return nil
	}
	return s.commit()
}

func (s *script) name() {
	s.spaces++
	n := namespaceOf(s.spaces)
	n.Number = uint32(s.draw.IntN(4)) // soon a number that another one had
	for epoch, old := range s.alive() {
		if old.Number == n.Number {
			s.close(epoch)
		}
	}
	s.o.named[n.Epoch] = n
	s.j.Namespace(n)
}

// alive are the namespaces that have a number now.
func (s *script) alive() map[uint64]Namespace {
	all := maps.Clone(s.o.spaces)
	maps.Copy(all, s.o.named)
	maps.DeleteFunc(all, func(epoch uint64, _ Namespace) bool { return s.o.closed[epoch] })
	return all
}

// close ends a namespace and its pages in the oracle.
func (s *script) close(epoch uint64) {
	s.o.closed[epoch] = true
	for _, pages := range []map[uint64]Put{s.o.pages, s.o.begun} {
		for sequence, p := range pages {
			if uint64(p.Digest[15])*epochStep == epoch {
				s.o.ended[sequence] = true
			}
		}
	}
}

func (s *script) dropSpace() {
	alive := s.alive()
	if len(alive) == 0 {
		return
	}
	epoch := slices.Sorted(maps.Keys(alive))[s.draw.IntN(len(alive))]
	s.close(epoch)
	s.j.DropNamespace(alive[epoch].Number)
}

func (s *script) put() {
	place := s.draw.IntN(payloadPages)
	alive := s.alive()
	if s.taken[place] || len(alive) == 0 {
		return
	}
	n := alive[slices.Sorted(maps.Keys(alive))[s.draw.IntN(len(alive))]]
	s.keys++
	p := pageOf(s.j, n.Number, int(s.keys), place)
	p.Digest[15] = byte(n.Epoch / epochStep)
	if old := s.endedKey(n.Epoch); old.Bytes > 0 && s.draw.IntN(2) == 0 {
		p.Key, p.Group = old.Key, old.Group
	}
	s.taken[place] = true
	s.o.begun[p.Sequence] = p
	s.j.Put(p)
}

// endedKey is a page of a namespace that was dropped since the last commit and may come again in the same one.
func (s *script) endedKey(epoch uint64) (found Put) {
	for sequence, p := range s.o.pages {
		same := func(live Put) bool {
			return live.Key == p.Key && live.Group == p.Group && live.Digest[15] == p.Digest[15]
		}
		if s.o.ended[sequence] && p.Sequence > found.Sequence && uint64(p.Digest[15])*epochStep == epoch && !slices.ContainsFunc(s.live(), same) {
			found = p
		}
	}
	return found
}

func (s *script) drop() {
	live := s.live()
	if len(live) == 0 {
		return
	}
	p := live[s.draw.IntN(len(live))]
	s.o.ended[p.Sequence] = true
	s.j.Drop(p.Offset)
}

// live are the pages that count now, in the order of their sequences.
func (s *script) live() []Put {
	all := maps.Clone(s.o.pages)
	maps.Copy(all, s.o.begun)
	maps.DeleteFunc(all, func(sequence uint64, _ Put) bool { return s.o.ended[sequence] })
	live := make([]Put, 0, len(all))
	for _, sequence := range slices.Sorted(maps.Keys(all)) {
		live = append(live, all[sequence])
	}
	return live
}

func (s *script) clear() {
	for _, p := range s.live() {
		s.o.ended[p.Sequence] = true
	}
	s.j.Clear()
}

func (s *script) commit() error {
	if err := s.j.Commit(); err != nil {
		return err
	}
	s.settled()
	return nil
}

func (s *script) compact() error {
	if err := s.j.Compact(slices.Values(s.live())); err != nil {
		return err
	}
	s.settled()
	return nil
}

func (s *script) settled() {
	s.o.committed()
	s.takePlaces()
}

// reopen stops cleanly and starts again: nothing may be lost, and nothing may be wrong.
func (s *script) reopen() error {
	s.o.begun, s.o.named = map[uint64]Put{}, map[uint64]Namespace{}
	clear(s.o.ended)
	clear(s.o.closed)
	if err := s.j.Close(); err != nil {
		return err
	}
	before := s.o
	j, state, err := Open(s.fs, volume, limits)
	if err != nil {
		return err
	}
	if err := before.check(state); err != nil {
		return err
	}
	if len(state.Problems) > 0 || !reflect.DeepEqual(known(state), before) {
		return fmt.Errorf("after a clean stop: problems %v", state.Problems)
	}
	s.j = j
	s.takePlaces()
	return nil
}
