package session

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/arena"
	"orbitkv/internal/wire"
)

func TestHelloIsCheckedBeforeAnythingElse(t *testing.T) {
	r := newRig(t, mib)
	hello := &wire.Hello{ABI: wire.ABI, Role: wire.RoleTool}

	p := r.dial()
	p.send(&wire.Hello{ABI: 4, Role: wire.RoleTool}, 1)
	if reason := p.ended(wire.StatusWrongABI); !strings.Contains(reason.Text, "ABI 4") || !strings.Contains(reason.Text, "ABI 5") {
		t.Errorf("the refusal %q does not name both numbers", reason.Text)
	}
	p = r.dial()
	future := binary.LittleEndian.AppendUint16(nil, 6) // of an ABI whose hello looks different
	p.raw(append(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 18), uint32(wire.TypeHello)), 1), future...))
	p.ended(wire.StatusWrongABI)
	p = r.dial()
	p.send(&wire.Ping{}, 1)
	p.ended(wire.StatusMalformed)
	p = r.dial()
	p.send(hello, 0)
	p.ended(wire.StatusMalformed)

	p = r.dial()
	var welcome wire.Welcome
	p.call(hello, &welcome)
	if welcome.ABI != wire.ABI || welcome.Incarnation != (wire.ID16{1}) || welcome.Token == (wire.ID16{}) || welcome.PoolBytes != mib || welcome.SessionOperationsMax != 128 {
		t.Errorf("welcome %+v", welcome)
	}
	p.send(hello, 2)
	p.ended(wire.StatusMalformed)
}

func TestAMalformedFrameClosesThatSessionOnly(t *testing.T) {
	r := newRig(t, mib)
	neighbour := r.open(wire.RoleTool)
	header := func(length uint32, typ wire.Type, flags uint16, id uint64, body ...byte) []byte {
		b := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(nil, length), uint16(typ)), flags)
		return append(binary.LittleEndian.AppendUint64(b, id), body...)
	}
	for what, frame := range map[string][]byte{
		"length below the header":     header(15, wire.TypePing, 0, 1),
		"length over the frame bound": header(wire.FrameBytesMax+1, wire.TypePing, 0, 1),
		"unknown type":                header(16, 99, 0, 1),
		"flags":                       header(24, wire.TypePing, 1, 1, make([]byte, 8)...),
		"body cut off":                header(20, wire.TypePing, 0, 1, make([]byte, 4)...),
		"trailing bytes":              header(25, wire.TypePing, 0, 1, make([]byte, 9)...),
		"a count beyond the frame":    header(24, wire.TypeRestored, 0, 0, make([]byte, 8)...),
		"a frame of the Manager":      header(24, wire.TypeRevoke, 0, 0, make([]byte, 8)...),
		"a call without an id":        header(18, wire.TypeRegister, 0, 0, 0, 0),
		"a one-way frame with an id":  header(24, wire.TypePong, 0, 9, make([]byte, 8)...),
	} {
		t.Run(what, func(t *testing.T) {
			p := r.open(wire.RoleTool)
			p.raw(frame)
			p.ended(wire.StatusMalformed)
			neighbour.alive()
		})
	}
	cut := r.open(wire.RoleTool)
	cut.raw(header(24, wire.TypePing, 0, 1, 1, 2, 3))
	if err := cut.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := cut.frames.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a frame that was cut off: %v, want the end of the connection", err)
	}
	r.until("the sessions' end", func() bool { return r.server.Connections() == 1 })
	neighbour.alive()
}

func TestSeededGarbageNeverHarmsANeighbour(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.attach("a", 4*kib)
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		p := r.open(wire.Role(1 + random.IntN(3)))
		frame := binary.LittleEndian.AppendUint32(nil, uint32(16+random.IntN(64)))
		frame = binary.LittleEndian.AppendUint16(frame, uint16(random.IntN(52)))
		frame = binary.LittleEndian.AppendUint16(frame, 0)
		for len(frame) < 400 {
			frame = append(frame, byte(random.IntN(4)*random.IntN(64)))
		}
		_, err := p.conn.Write(frame)
		if err == nil {
			err = p.conn.CloseWrite()
		}
		if err != nil {
			continue // closed already
		}
		for err == nil {
			_, _, err = p.frames.Next()
		}
	}
	e.publish(keysOf(0, 4))
	if got := e.query(keysOf(0, 4)); got.Pages != 4 {
		t.Errorf("%d pages, want 4", got.Pages)
	}
}

func TestArenasReachWhoeverAttached(t *testing.T) {
	r := newRig(t, 4*mib)
	early, bystander := r.open(wire.RoleWorker), r.open(wire.RoleTool)
	early.call(attachFrame("early", 4*kib), &wire.Done{})
	r.lend()
	late := r.open(wire.RoleWorker)
	late.call(attachFrame("late", 4*kib), &wire.Done{})
	for _, p := range []*peerEnd{early, late} {
		a := p.takeArena()
		if a.Arena != r.arena.ID || a.Bytes != 4*mib || len(p.descriptors) != 1 {
			t.Fatalf("arena %+v with %d descriptors", a, len(p.descriptors))
		}
		seals, err := unix.FcntlInt(uintptr(p.descriptors[0]), unix.F_GET_SEALS, 0)
		if err != nil || seals != arena.Seals {
			t.Errorf("seals %#x, %v", seals, err)
		}
		view, err := unix.Mmap(p.descriptors[0], 0, int(a.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Munmap(view); err != nil {
			t.Fatal(err)
		}
	}
	bystander.alive()
	if len(bystander.descriptors) != 0 {
		t.Error("a session that did not attach got a descriptor")
	}
	early.send(&wire.Mapped{Arena: 7, Ok: true}, 0)
	early.ended(wire.StatusUnknown)
}

func TestOperationsInPartsPublishAndRestore(t *testing.T) {
	r := newRig(t, 256*mib)
	r.lend()
	e := r.attach("a", 4*kib)
	// Every second page of a first reserve is taken, so that the runs of the second one have length one and its answer needs parts.
	const pages = 10_000
	first := e.publish(keysOf(0, pages))
	if len(first.Runs) != 1 || len(first.Grants) != 1 {
		t.Errorf("%d runs and %d grants for adjacent pages", len(first.Runs), len(first.Grants))
	}
	var mixed []wire.Key
	for i := range pages {
		mixed = append(mixed, keysOf(i, 1)[0], keysOf(1_000_000+i, 1)[0])
	}
	second := e.reserve(mixed)
	if second.Pages != pages || len(second.Grants) != 2*pages || second.Grants[0] != (wire.GrantRun{Grant: wire.GrantPresent, Count: 1}) || second.Grants[1].Grant != wire.GrantGranted {
		t.Fatalf("%d pages, %d grants, %+v", second.Pages, len(second.Grants), second.Grants[:2])
	}
	e.worker.send(&wire.Committed{Reservation: second.Reservation, Ranges: []wire.Range{{Count: pages}}}, 0)
	e.worker.alive()
	got := e.query(mixed)
	if got.Pages != 2*pages || got.Lease == 0 || len(got.Runs) != 2*pages || wire.CountRuns(got.Runs, 0) != 2*pages || got.Parts < 2 {
		t.Fatalf("%d pages in %d runs and %d parts", got.Pages, len(got.Runs), got.Parts)
	}
	if got.Runs[0].First != first.Runs[0].First || got.Runs[1].First != second.Runs[0].First {
		t.Errorf("the first pages lie at %x and %x", got.Runs[0].First, got.Runs[1].First)
	}
	e.scheduler.send(&wire.Begin{Lease: got.Lease, Rank: wire.AllRanks, Pages: 100}, 0)
	e.scheduler.alive()
	e.worker.send(&wire.Restored{Lease: got.Lease, Ok: true, Bytes: 100 * 4 * kib, Ranges: []wire.Range{{Count: 100}}}, 0)
	e.worker.alive()
	if s := r.cache.Stats(); s.LoadBytesTotal != 100*4*kib || s.Leases != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestPartsThatDoNotFitTogether(t *testing.T) {
	base := wire.Query{Operation: 1, Revision: 1, Parts: 3, Instance: "a", Request: "r"}
	for what, frames := range map[string]func(*peerEnd){
		"no parts":          func(p *peerEnd) { m := base; m.Parts = 0; p.send(&m, 1) },
		"too many parts":    func(p *peerEnd) { m := base; m.Parts = wire.PartsMax + 1; p.send(&m, 0) },
		"index beyond":      func(p *peerEnd) { m := base; m.Part = 3; p.send(&m, 0) },
		"begins with 1":     func(p *peerEnd) { m := base; m.Part = 1; p.send(&m, 0) },
		"out of order":      func(p *peerEnd) { m := base; p.send(&m, 0); m.Part = 2; p.send(&m, 0) },
		"id on a first one": func(p *peerEnd) { m := base; p.send(&m, 1) },
		"no id on the last": func(p *peerEnd) { m := base; m.Parts = 1; p.send(&m, 0) },
		"another namespace": func(p *peerEnd) { m := base; p.send(&m, 0); m.Part, m.Namespace = 1, 9; p.send(&m, 0) },
		"another request":   func(p *peerEnd) { m := base; p.send(&m, 0); m.Part, m.Request = 1, "s"; p.send(&m, 0) },
		"too many keys": func(p *peerEnd) {
			m := base
			m.Parts, m.Keys = wire.PartsMax, make([]wire.Key, wire.FrameKeysMax)
			for ; int(m.Part)*wire.FrameKeysMax <= wire.OperationKeysMax; m.Part++ {
				p.send(&m, 0)
			}
		},
		"too many unfinished": func(p *peerEnd) {
			for m := base; m.Operation <= assembliesMax+1; m.Operation++ {
				p.send(&m, 0)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, mib)
			p := r.open(wire.RoleScheduler)
			frames(p)
			p.ended(wire.StatusMalformed)
		})
	}
}

func TestWhatASessionDoesNotHoldClosesIt(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	owner := r.attach("a", 4*kib)
	owner.publish(keysOf(0, 4))
	lease := owner.query(keysOf(0, 4)).Lease
	open := owner.reserve(keysOf(100, 2)).Reservation
	for what, m := range map[string]wire.Message{
		"begin of another's lease":         &wire.Begin{Lease: lease, Rank: wire.AllRanks, Pages: 1},
		"begin of no lease":                &wire.Begin{Lease: lease + 1, Pages: 1},
		"release of another's lease":       &wire.Release{Lease: lease, Rank: wire.AllRanks},
		"yield of another's lease":         &wire.Revoked{Lease: lease, Yielded: true},
		"report on another's lease":        &wire.Restored{Lease: lease, Ok: true, Ranges: []wire.Range{{Count: 1}}},
		"commit of another's reservation":  &wire.Committed{Reservation: open, Ranges: []wire.Range{{Count: 1}}},
		"abandoning another's reservation": &wire.Abandoned{Reservation: open, Rank: wire.AllRanks, Ranges: []wire.Range{{Count: 1}}},
	} {
		t.Run(what, func(t *testing.T) {
			p := r.open(wire.RoleScheduler)
			p.send(m, 0)
			p.ended(wire.StatusUnknown)
		})
	}
	stranger := r.open(wire.RoleScheduler)
	stranger.refused(&wire.Poll{Operation: owner.operation, Revision: 1}, wire.StatusUnknown)
	stranger.refused(&wire.Register{Instance: "a", Rank: wire.AllRanks}, wire.StatusConflict)
	stranger.refused(&wire.Register{Instance: "absent", Rank: wire.AllRanks}, wire.StatusNotReady)
	stranger.refused(&wire.Epoch{Instance: "a", Epoch: 5}, wire.StatusUnknown)
	stranger.refused(&wire.Detach{Instance: "a"}, wire.StatusUnknown)
	stranger.refused(&wire.Resume{Token: wire.ID16{9}}, wire.StatusUnknown)
	stranger.refused(&wire.Query{Operation: 1, Revision: 1, Parts: 1, Namespace: owner.namespace.Namespace, Instance: "a"}, wire.StatusUnknown)
	stranger.alive()
	if strings.Contains(r.log.String(), "msg=detached") {
		t.Error("a detach that was refused is logged as one")
	}
	if s := r.cache.Stats(); s.Leases != 1 || s.Reservations != 1 {
		t.Errorf("strangers changed what the owner holds: %+v", s)
	}
}

func TestRangesAndBytesBeyondTheGrantCloseTheSession(t *testing.T) {
	for what, report := range map[string]func(lease, reservation uint64) wire.Message{
		"pages beyond the lease": func(lease, _ uint64) wire.Message {
			return &wire.Restored{Lease: lease, Ok: true, Ranges: []wire.Range{{First: 3, Count: 2}}}
		},
		"more bytes than the slices": func(lease, _ uint64) wire.Message {
			return &wire.Restored{Lease: lease, Ok: true, Bytes: 4*kib + 1, Ranges: []wire.Range{{Count: 1}}}
		},
		"ordinals beyond the grant": func(_, reservation uint64) wire.Message {
			return &wire.Committed{Reservation: reservation, Ranges: []wire.Range{{First: 2, Count: 1}}}
		},
		"another rank": func(_, reservation uint64) wire.Message {
			return &wire.Committed{Reservation: reservation, Rank: 1, Ranges: []wire.Range{{Count: 1}}}
		},
		"a range that wraps": func(_, reservation uint64) wire.Message {
			return &wire.Abandoned{Reservation: reservation, Ranges: []wire.Range{{First: 0xFFFFFFFF, Count: 2}}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, mib)
			r.lend()
			e := r.attach("a", 4*kib)
			e.publish(keysOf(0, 4))
			lease := e.query(keysOf(0, 4)).Lease
			open := e.reserve(keysOf(100, 2)).Reservation
			e.worker.send(report(lease, open), 0)
			h, body, err := e.worker.frames.Next()
			var reason wire.Error
			if err != nil || h.Type != wire.TypeError || h.ID != 0 || reason.Decode(body) != nil {
				t.Fatalf("%+v, %v; want the reason of the session's end", h, err)
			}
			e.scheduler.alive()
			if s := r.cache.Stats(); s.Leases != 1 || s.Reservations != 1 || s.LoadBytesTotal != 0 {
				t.Errorf("the report had an effect: %+v", s)
			}
		})
	}
}

func TestCloseTellsEveryClientAndRemovesTheSocket(t *testing.T) {
	r := newRig(t, mib)
	a, b := r.open(wire.RoleTool), r.dial()
	r.until("both connections", func() bool { return r.server.Connections() == 2 })
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	a.ended(wire.StatusStopping)
	b.ended(wire.StatusStopping)
	if _, err := os.Lstat(r.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestASecondHelloSaysThatTheSessionIsOpen(t *testing.T) {
	r := newRig(t, mib)
	p := r.open(wire.RoleTool)
	p.send(&wire.Hello{ABI: wire.ABI, Role: wire.RoleTool, Name: "again"}, 9)
	if reason := p.ended(wire.StatusMalformed); !strings.Contains(reason.Text, "this session is open already") {
		t.Errorf("the reason is %q", reason.Text)
	}
}
