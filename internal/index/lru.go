package index

// list is the LRU order of one class: head was used last, tail is the next victim. Links are entry numbers, 0 is none.
//
// Only sealed pages without references are in a list: a referenced page is never a victim and costs reclaim no look. A pin does not count.
type list struct {
	head, tail uint32
	pages      uint64
}

func (x *Index) link(number uint32) {
	e := x.at(number)
	if e.class() == Unlisted {
		return
	}
	if e.listed() {
		panic("index: page record linked twice")
	}
	l := &x.lists[e.class()]
	e.prev, e.next = 0, l.head
	if l.head != 0 {
		x.at(l.head).prev = number
	} else {
		l.tail = number
	}
	l.head = number
	l.pages++
	e.flags |= listedBit
}

func (x *Index) unlink(number uint32) {
	e := x.at(number)
	if !e.listed() {
		return
	}
	l := &x.lists[e.class()]
	if e.prev != 0 {
		x.at(e.prev).next = e.next
	} else {
		l.head = e.next
	}
	if e.next != 0 {
		x.at(e.next).prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = 0, 0
	l.pages--
	e.flags &^= listedBit
}

// Oldest returns the next victim of a class: the sealed, unreferenced page that was used longest ago.
func (x *Index) Oldest(class Class) (Handle, bool) {
	return x.handle(x.lists[class].tail)
}

// Newer returns the page of the same class that was used next after h; ok is false at the end or when h is in no list.
func (x *Index) Newer(h Handle) (Handle, bool) {
	e := x.live(h)
	if e == nil || !e.listed() {
		return Handle{}, false
	}
	return x.handle(e.prev)
}

// Touch makes a listed page the one used last in its class. It does nothing for a stale handle or a page in no list.
func (x *Index) Touch(h Handle) {
	if e := x.live(h); e != nil && e.listed() {
		x.unlink(h.entry)
		x.link(h.entry)
	}
}

// Promote moves this generation of a page to a class, up or down, as the page used last there if it is listed. It says whether the class changed:
// a stale handle moves nothing, and neither does one of an unlisted page.
func (x *Index) Promote(h Handle, class Class) bool {
	e := x.live(h)
	if e == nil || e.state == Free || e.class() == class || e.class() == Unlisted || class == Unlisted {
		return false
	}
	listed := e.listed()
	x.unlink(h.entry)
	if e.state == Sealed {
		x.resident[e.class()]--
		x.resident[class]++
	}
	e.setClass(class)
	if listed {
		x.link(h.entry)
	}
	return true
}
