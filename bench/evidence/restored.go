package evidence

import (
	"orbitkv/bench/record"
)

// service checks what only the kind of backend says: a native engine has no outside, and LMCache counts chunks where others count bytes.
func (l *ledger) service(external float64) {
	switch l.c.Backend {
	case record.Native:
		if external > 0 {
			l.doubt("the engine counts %g tokens from outside, and it was started without an external cache", external)
		}
	case record.OrbitKV:
		if failed := l.delta(managerFailedLoads); failed != 0 {
			l.doubt("the engine told of %g pages whose copy failed", failed)
		}
	case record.LMCache:
		l.chunks(external)
	}
}

// chunks compares the tokens from outside with the chunks, of one page each, that LMCache's daemon loaded.
func (l *ledger) chunks(external float64) {
	chunks, page := l.delta(daemonChunks), float64(l.c.PageSize)
	switch {
	case external > 0 && chunks*page < external:
		l.doubt("%g tokens came from outside, and LMCache loaded %g chunks of %g tokens", external, chunks, page)
	case external == 0 && chunks > 0:
		l.doubt("LMCache loaded %g chunks, and no token came from outside", chunks)
	}
}

// loadBytes names the counter of restored bytes; empty where the backend has none.
func (l *ledger) loadBytes() string {
	switch {
	case l.c.Backend == record.OrbitKV:
		return managerLoadBytes
	case l.c.Engine == record.VLLM && l.serves(vllmLoadBytes):
		return vllmLoadBytes
	case l.c.Engine == record.SGLang && l.serves(sglangLoadBytes):
		return sglangLoadBytes
	}
	return ""
}

// bytes compares the tokens from outside with the bytes that were restored, where they are counted. Requests of a burst may share a restore, so
// that the least that must have come is given in tokens. One page of each request may come that the engine does not count: it computes the last
// token of a prompt itself.
func (l *ledger) bytes(least, external float64, requests int) {
	name := l.loadBytes()
	if name == "" {
		return
	}
	l.loaded = l.delta(name)
	size := float64(l.c.BytesPerToken)
	switch {
	case external > 0 && l.loaded < least*size:
		l.doubt("%g tokens from outside are %g bytes, and %s moved by %g", least, least*size, name, l.loaded)
	case external == 0 && l.loaded > 0:
		l.doubt("%s moved by %g, and no token came from outside", name, l.loaded)
	case l.loaded > (external+float64(requests*l.c.PageSize))*size:
		l.doubt("%s moved by %g, more than the %g tokens from outside and a page of each request are", name, l.loaded, external)
	}
}

// tiers returns what the tiers of OrbitKV's Manager did, and checks that every page that was asked for was found in one of them or in none. After the Manager
// emptied its memory the tokens from outside, of which least were read at the least, came from the SSD. Reads without tokens from outside are no doubt: a
// look-up that was given up may have begun them, and the report counts such samples.
func (l *ledger) tiers(least float64) *record.Tiers {
	if l.c.Backend != record.OrbitKV {
		return nil
	}
	t := TiersOf(l.c.Before, l.c.After)
	if t == nil {
		l.doubt("the Manager's tiers are not told of, or fell: it was started anew")
		return nil
	}
	if t.Found() != t.AskedPages {
		l.doubt("look-ups asked the Manager for %g pages, and its tiers and its misses are %g", t.AskedPages, t.Found())
	}
	if need := least * float64(l.c.BytesPerToken); l.c.Evicted && t.SSDReadBytes < need {
		l.doubt("%g tokens came from outside after the Manager emptied its memory, which are %g bytes, and it read %g from the SSD", least, need, t.SSDReadBytes)
	}
	return t
}
