package policy

// HistoryPages is the number of pages that a History remembers.
const HistoryPages = 16384

// History is the last HistoryPages different pages that were added, exactly. A page that is added again becomes the newest; past the bound the page
// that was added longest ago is forgotten. Asking moves nothing. Create it with NewHistory.
type History struct {
	places map[Page]int32
	nodes  []historyNode // node 0 is the ring's own: its next is the oldest page, its prev the newest
}

type historyNode struct {
	page       Page
	prev, next int32
}

// NewHistory returns an empty history. It takes about 2 MiB once it is full.
func NewHistory() *History {
	return &History{places: map[Page]int32{}, nodes: make([]historyNode, 1)}
}

// Has says whether a page is remembered.
func (h *History) Has(p Page) bool {
	_, known := h.places[p]
	return known
}

// Add makes a page the newest and says whether it was remembered before.
func (h *History) Add(p Page) (known bool) {
	at, known := h.places[p]
	switch {
	case known:
		h.unlink(at)
	case len(h.nodes) <= HistoryPages:
		at = int32(len(h.nodes))
		h.nodes = append(h.nodes, historyNode{page: p})
		h.places[p] = at
	default:
		at = h.nodes[0].next
		h.unlink(at)
		delete(h.places, h.nodes[at].page)
		h.nodes[at].page = p
		h.places[p] = at
	}
	newest := h.nodes[0].prev
	h.nodes[at].prev, h.nodes[at].next = newest, 0
	h.nodes[newest].next, h.nodes[0].prev = at, at
	return known
}

// Len is the number of pages that are remembered.
func (h *History) Len() int { return len(h.places) }

func (h *History) unlink(at int32) {
	n := &h.nodes[at]
	h.nodes[n.prev].next, h.nodes[n.next].prev = n.next, n.prev
}
