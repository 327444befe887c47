package index

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func key(n int) *Key {
	var k Key
	binary.LittleEndian.PutUint64(k[:], uint64(n)*0x9e3779b97f4a7c15)
	k[31] = byte(n)
	return &k
}

func sealed(x *Index, n int, class Class) Handle {
	h := x.Reserve(1, 0, key(n), uint64(n), class, Published)
	x.Seal(h)
	return h
}

func order(x *Index, class Class) (locations []uint64) {
	for h, ok := x.Oldest(class); ok; h, ok = x.Newer(h) {
		locations = append(locations, x.Location(h))
	}
	return locations
}

func mustPanic(t *testing.T, what string, act func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	act()
}

func TestEntryIsOneCacheLine(t *testing.T) {
	if size := reflect.TypeFor[entry]().Size(); size != 64 {
		t.Fatalf("an entry has %d bytes", size)
	}
}

func TestKeysDifferByNamespaceGroupAndHash(t *testing.T) {
	x := New(1, nil)
	h := x.Reserve(1, 0, key(1), 7, Retained, Published)
	for _, other := range []struct {
		namespace uint32
		group     uint16
		key       *Key
	}{{2, 0, key(1)}, {1, 1, key(1)}, {1, 0, key(2)}} {
		if _, _, ok := x.Find(other.namespace, other.group, other.key); ok {
			t.Errorf("%v found the page of another identity", other)
		}
	}
	if found, state, ok := x.Find(1, 0, key(1)); !ok || found != h || state != Reserved {
		t.Errorf("found %v %v %v", found, state, ok)
	}
}

func TestReferencedPagesAreNoVictimsAndReturnAsUsedLast(t *testing.T) {
	x := New(1, nil)
	handles := []Handle{sealed(x, 1, Retained), sealed(x, 2, Retained), sealed(x, 3, Retained)}
	x.Hold(handles[0])
	x.Hold(handles[0])
	if got := order(x, Retained); !slices.Equal(got, []uint64{2, 3}) {
		t.Fatalf("victims %v", got)
	}
	x.Drop(handles[0])
	if got := order(x, Retained); !slices.Equal(got, []uint64{2, 3}) {
		t.Fatalf("victims %v with a reference left", got)
	}
	x.Drop(handles[0])
	x.Touch(handles[1])
	if got := order(x, Retained); !slices.Equal(got, []uint64{3, 1, 2}) {
		t.Fatalf("victims %v", got)
	}
}

func TestRetiredPageLivesUntilItsLastReference(t *testing.T) {
	var gone []Page
	x := New(1, func(p Page) { gone = append(gone, p) })
	h := sealed(x, 1, Probationary)
	x.Hold(h)
	if x.Retire(h) || len(gone) != 0 {
		t.Fatal("a referenced page was freed")
	}
	if _, _, ok := x.Find(1, 0, key(1)); ok {
		t.Fatal("a retired page is found by its key")
	}
	again := x.Reserve(1, 0, key(1), 9, Retained, Warmed)
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
	if !x.Drop(h) || len(gone) != 1 || gone[0].Location != 1 || gone[0].Class != Probationary || gone[0].Handle != h {
		t.Fatalf("the last reference reported %v", gone)
	}
	if p, ok := x.Page(again); !ok || p.Location != 9 || p.Origin != Warmed {
		t.Fatalf("the key's new page is %v %v", p, ok)
	}
}

func TestStaleHandleMovesNothing(t *testing.T) {
	x := New(1, nil)
	old := sealed(x, 1, Reclaimable)
	x.Retire(old)
	fresh := sealed(x, 1, Reclaimable)
	if old.Entry() != fresh.Entry() {
		t.Fatal("the record was not reused, so that this test shows nothing")
	}
	if x.Promote(old, Retained) {
		t.Error("a stale handle promoted the page that replaced its own")
	}
	sealed(x, 2, Reclaimable)
	x.Touch(old)
	if got := order(x, Reclaimable); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("a stale handle touched: %v", got)
	}
	mustPanic(t, "a reference by a stale handle", func() { x.Hold(old) })
	if !x.Promote(fresh, Retained) || x.Resident(Retained) != 1 || x.Resident(Reclaimable) != 1 {
		t.Error("the live handle did not promote")
	}
}

func TestIllegalMovesPanic(t *testing.T) {
	x := New(1, nil)
	page := sealed(x, 1, Retained)
	reserved := x.Reserve(1, 0, key(2), 2, Retained, Published)
	mustPanic(t, "sealed to sealed", func() { x.Seal(page) })
	mustPanic(t, "sealed to abandoned", func() { x.Abandon(page) })
	mustPanic(t, "discard of a sealed page", func() { x.Discard(page) })
	mustPanic(t, "reserved to retired", func() { New(1, nil).Retire(reserved) })
	mustPanic(t, "reference to a reserved page", func() { x.Hold(reserved) })
	mustPanic(t, "drop without reference", func() { x.Drop(page) })
	mustPanic(t, "pin of a reserved page", func() { x.Pin(reserved) })
	mustPanic(t, "unpin without pin", func() { x.Unpin(page) })
	x.Pin(page)
	mustPanic(t, "a second pin", func() { x.Pin(page) })
	x.Unpin(page)
	mustPanic(t, "second record of a key", func() { x.Reserve(1, 0, key(1), 3, Retained, Published) })
	x.Quarantine(reserved)
	mustPanic(t, "quarantined to free", func() { x.to(reserved.entry, Free) })
	mustPanic(t, "quarantined to sealed", func() { x.Seal(reserved) })
}

func TestUnlistedPagesAreInNoList(t *testing.T) {
	x := New(1, nil)
	h := sealed(x, 1, Unlisted)
	x.Hold(h)
	x.Drop(h)
	for _, class := range Classes {
		if _, ok := x.Oldest(class); ok {
			t.Errorf("an unlisted page is a victim in %v", class)
		}
	}
	if x.Promote(h, Retained) {
		t.Error("an unlisted page was promoted")
	}
}

// modelPage is what the oracle knows of one record.
type modelPage struct {
	handle Handle
	number int
	state  State
	refs   int
	pinned bool
}

// TestModel drives random lives against a map of what each key must answer.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		freed := map[Handle]int{}
		x := New(rapid.Uint64().Draw(t, "seed"), func(p Page) { freed[p.Handle]++ })
		var pages []*modelPage
		keyed := map[int]*modelPage{}
		draw := func(t *rapid.T, states ...State) *modelPage {
			var fit []*modelPage
			for _, p := range pages {
				if slices.Contains(states, p.state) {
					fit = append(fit, p)
				}
			}
			if len(fit) == 0 {
				t.Skip()
			}
			return fit[rapid.IntRange(0, len(fit)-1).Draw(t, "page")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				n := rapid.IntRange(0, 60).Draw(t, "key")
				if keyed[n] != nil {
					t.Skip()
				}
				class := Class(rapid.IntRange(0, 3).Draw(t, "class"))
				p := &modelPage{number: n, state: Reserved, handle: x.Reserve(1, 0, key(n), uint64(n), class, Published)}
				pages, keyed[n] = append(pages, p), p
			},
			"seal": func(t *rapid.T) {
				p := draw(t, Reserved)
				x.Seal(p.handle)
				p.state = Sealed
			},
			"abandon": func(t *rapid.T) {
				p := draw(t, Reserved)
				x.Abandon(p.handle)
				p.state = Abandoned
				delete(keyed, p.number)
			},
			"quarantine": func(t *rapid.T) {
				p := draw(t, Reserved, Abandoned)
				if p.state == Reserved {
					delete(keyed, p.number)
				}
				x.Quarantine(p.handle)
				p.state = Quarantined
			},
			"discard": func(t *rapid.T) {
				p := draw(t, Abandoned)
				x.Discard(p.handle)
				p.state = Free
			},
			"hold": func(t *rapid.T) {
				p := draw(t, Sealed)
				x.Hold(p.handle)
				p.refs++
			},
			"drop": func(t *rapid.T) {
				p := draw(t, Sealed, Retired)
				if p.refs == 0 {
					t.Skip()
				}
				p.refs--
				if last := p.refs == 0 && !p.pinned && p.state == Retired; x.Drop(p.handle) != last {
					t.Fatalf("drop said freed=%v with %d references in state %v", !last, p.refs, p.state)
				} else if last {
					p.state = Free
				}
			},
			"retire": func(t *rapid.T) {
				p := draw(t, Sealed)
				delete(keyed, p.number)
				p.state = Retired
				if x.Retire(p.handle) {
					p.state = Free
				}
				if (p.state == Free) != (p.refs == 0 && !p.pinned) {
					t.Fatalf("retire left state %v with %d references, pinned %v", p.state, p.refs, p.pinned)
				}
			},
			"pin": func(t *rapid.T) {
				p := draw(t, Sealed)
				if p.pinned {
					t.Skip()
				}
				before := order(x, Retained)
				x.Pin(p.handle)
				p.pinned = true
				if !slices.Equal(order(x, Retained), before) {
					t.Fatal("a pin changed the order of victims")
				}
			},
			"unpin": func(t *rapid.T) {
				p := draw(t, Sealed, Retired)
				if !p.pinned {
					t.Skip()
				}
				p.pinned = false
				before, last := order(x, Retained), p.refs == 0 && p.state == Retired
				if x.Unpin(p.handle) != last {
					t.Fatalf("unpin said freed=%v with %d references in state %v", !last, p.refs, p.state)
				}
				if last {
					p.state = Free
				}
				if !slices.Equal(order(x, Retained), before) {
					t.Fatal("the end of a pin changed the order of victims")
				}
			},
			// Always possible, so that a run in which the others have nothing to work on goes on.
			"look elsewhere": func(t *rapid.T) {
				if h, state, ok := x.Find(2, 0, key(rapid.IntRange(0, 60).Draw(t, "key"))); ok {
					t.Fatalf("another namespace has page %v in state %v", h, state)
				}
			},
			"promote": func(t *rapid.T) {
				p := draw(t, Sealed, Reserved, Free)
				x.Promote(p.handle, Class(rapid.IntRange(0, 2).Draw(t, "class")))
				x.Touch(p.handle)
			},
			"": func(t *rapid.T) {
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
				for n := range 61 {
					h, state, ok := x.Find(1, 0, key(n))
					p := keyed[n]
					if ok != (p != nil) || ok && (h != p.handle || state != p.state) {
						t.Fatalf("key %d: found %v %v %v, want %+v", n, h, state, ok, p)
					}
				}
				for _, p := range pages {
					if want := map[bool]int{true: 1}[p.state == Free]; freed[p.handle] != want {
						t.Fatalf("the last reference of %+v was reported %d times", p, freed[p.handle])
					}
				}
			},
		})
	})
}

// TestDeletionDoesNotDegrade fills and empties tables many times over and then measures the longest probe.
func TestDeletionDoesNotDegrade(t *testing.T) {
	x := New(3, nil)
	const live = 20_000
	handles := make([]Handle, live)
	for i := range handles {
		handles[i] = sealed(x, i, Retained)
	}
	slots := x.Bytes()
	for i := live; i < 10*live; i++ {
		x.Retire(handles[i%live])
		handles[i%live] = sealed(x, i, Retained)
	}
	if x.Bytes() > slots+slots/8 {
		t.Errorf("replacing pages grew the index from %d to %d bytes", slots, x.Bytes())
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}
