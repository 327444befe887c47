package index

import "fmt"

// Check reports the first broken rule of the index's own state: counts by state and class, slot tables against entries, LRU lists
// against states and references. It reads every record.
func (x *Index) Check() error {
	var counts [states]uint64
	var resident [classes]uint64
	listed := uint64(0)
	for number := uint32(1); number <= x.made; number++ {
		e := x.at(number)
		counts[e.state]++
		if e.state == Sealed {
			resident[e.class()]++
		}
		if err := x.checkEntry(e, number); err != nil {
			return err
		}
		if e.listed() {
			listed++
		}
	}
	if counts != x.counts {
		return fmt.Errorf("index: records by state are %v, the counters say %v", counts, x.counts)
	}
	if resident != x.resident {
		return fmt.Errorf("index: sealed pages by class are %v, the counters say %v", resident, x.resident)
	}
	if err := x.checkTables(); err != nil {
		return err
	}
	return x.checkLists(listed)
}

func (x *Index) checkEntry(e *entry, number uint32) error {
	if e.state == Free {
		return nil
	}
	if found := x.lookup(e.namespace, e.group, &e.key); (found == number) != e.state.keyed() {
		return fmt.Errorf("index: the key of %v page record %d leads to record %d", e.state, number, found)
	}
	if e.owned() && e.state != Sealed && e.state != Retired {
		return fmt.Errorf("index: %v page record %d has %d references, pinned %v", e.state, number, e.refs, e.pinned())
	}
	if e.state == Retired && !e.owned() {
		return fmt.Errorf("index: retired page record %d has neither reference nor pin left", number)
	}
	if want := e.state == Sealed && e.refs == 0 && e.class() != Unlisted; e.listed() != want {
		return fmt.Errorf("index: %v page record %d with %d references: listed is %v", e.state, number, e.refs, e.listed())
	}
	return nil
}

func (x *Index) checkTables() error {
	keyed := uint64(0)
	for i := range x.tables {
		t := &x.tables[i]
		used := 0
		for _, slot := range t.slots {
			if slot != 0 {
				used++
			}
		}
		if used != t.used {
			return fmt.Errorf("index: slot table %d holds %d records, its counter says %d", i, used, t.used)
		}
		keyed += uint64(used)
	}
	if want := x.counts[Reserved] + x.counts[Sealed]; keyed != want {
		return fmt.Errorf("index: %d records in the slot tables, %d are reserved or sealed", keyed, want)
	}
	return nil
}

func (x *Index) checkLists(listed uint64) error {
	walked := uint64(0)
	for _, class := range Classes {
		l := &x.lists[class]
		pages, before := uint64(0), uint32(0)
		for number := l.head; number != 0; number = x.at(number).next {
			e := x.at(number)
			if e.prev != before || e.class() != class || !e.listed() || pages > l.pages {
				return fmt.Errorf("index: page record %d is linked wrongly in the %v list", number, class)
			}
			before = number
			pages++
		}
		if pages != l.pages || before != l.tail {
			return fmt.Errorf("index: the %v list holds %d pages and ends at %d, its counters say %d and %d", class, pages, before, l.pages, l.tail)
		}
		walked += pages
	}
	if walked != listed {
		return fmt.Errorf("index: %d pages are marked as listed, the lists hold %d", listed, walked)
	}
	return nil
}
