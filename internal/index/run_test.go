package index

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A run is what Find says key by key, wherever it ends and however crowded the tables are.
func TestARunIsFindKeyByKey(t *testing.T) {
	const pages = 3000
	x := New(7, nil)
	for n := range pages {
		switch h := x.Reserve(1, 0, key(n), uint64(n), Retained, Published); {
		case n%701 == 700: // being written
		case n%997 == 996:
			x.Abandon(h)
		default:
			x.Seal(h)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.IntRange(0, pages).Draw(rt, "from")
		keys := make([]Key, rapid.SampledFrom([]int{0, 1, 2, 3, 4, 7, 63, 64, 65, 127, 128, 300, 1000}).Draw(rt, "keys"))
		var want []Handle
		for i := range keys {
			keys[i] = *key(from + i)
		}
		for i := range keys {
			h, state, ok := x.Find(1, 0, &keys[i])
			if !ok || state != Sealed {
				break
			}
			want = append(want, h)
		}
		if got := FindRun(x, 1, 0, keys, nil); !slices.Equal(got, want) {
			rt.Errorf("from %d, %d keys: a run of %d pages, want %d", from, len(keys), len(got), len(want))
		}
		if got := FindRun(x, 2, 0, keys, nil); len(got) != 0 {
			rt.Errorf("%d pages of another namespace were found", len(got))
		}
	})
}

// Two keys may share a tag: the record in the home slot is then another key's.
func TestARunComparesWholeKeys(t *testing.T) {
	x := New(7, nil)
	other := sealed(x, 1, Retained)
	number, tag := split(x.seeds.hash(1, 0, key(2)))
	place := &x.tables[number]
	if len(place.slots) == 0 {
		place.grow()
	}
	place.put(tag, other.entry)
	place.used++
	if got := FindRun(x, 1, 0, []Key{*key(2)}, nil); len(got) != 0 {
		t.Error("a key found the page of another one with its tag")
	}
}
