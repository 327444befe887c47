package index

// lookAhead is how many keys FindRun has in hand at most, so that their waits for memory overlap. It begins with one and doubles: a run that
// ends at once, as every miss does, costs one look.
const lookAhead = 64

// FindRun appends the handles of the leading keys whose pages are sealed, up to the first that is not (I9), and returns them. It is Find key by
// key, in another order of reading: the slots of several keys are read before their records, and their records before they are compared. It
// moves no page in any list (I7).
func FindRun[K ~[32]byte](x *Index, namespace uint32, group uint16, keys []K, found []Handle) []Handle {
	var homes [lookAhead]uint32
	var states [lookAhead]State
	for n := 1; len(keys) > 0; n = min(2*n, lookAhead) {
		ahead := keys[:min(len(keys), n)]
		for i := range ahead {
			key := Key(ahead[i])
			homes[i] = x.home(namespace, group, &key)
		}
		for i := range ahead {
			if homes[i] != 0 {
				states[i] = x.at(homes[i]).state
			}
		}
		for i := range ahead {
			key, number := Key(ahead[i]), homes[i]
			if number == 0 || !x.at(number).is(&key, namespace, group) {
				if number = x.lookup(namespace, group, &key); number == 0 {
					return found
				}
				states[i] = x.at(number).state
			}
			if states[i] != Sealed {
				return found
			}
			found = append(found, Handle{number, x.at(number).generation})
		}
		keys = keys[len(ahead):]
	}
	return found
}

// home returns the record in a key's home slot when the tag fits, else 0: it may be another key's.
func (x *Index) home(namespace uint32, group uint16, key *Key) uint32 {
	number, tag := split(x.seeds.hash(namespace, group, key))
	t := &x.tables[number]
	if t.used == 0 {
		return 0
	}
	slot := t.slots[tag&uint32(len(t.slots)-1)]
	if slot == 0 || uint32(slot>>32) != tag {
		return 0
	}
	return uint32(slot)
}
