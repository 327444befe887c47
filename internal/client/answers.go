package client

import "orbitkv/internal/wire"

// call waits for one answer, which may come in parts. The reading goroutine writes its fields until ended is closed; the caller
// reads them after.
type call struct {
	id     uint64
	answer wire.Message
	err    error
	ended  chan struct{}
	parts  uint16 // parts of the answer that have arrived
}

func newCall(id uint64) *call { return &call{id: id, ended: make(chan struct{})} }

func (w *call) end(answer wire.Message, err error) {
	w.answer, w.err = answer, err
	close(w.ended)
}

// take adds a frame to the answer and says whether it is whole.
func (w *call) take(m wire.Message) (whole bool, err error) {
	switch m := m.(type) {
	case *wire.Error:
		w.end(nil, m)
		return true, nil
	case *wire.Result:
		return w.takeResult(m)
	case *wire.Reserved:
		return w.takeReserved(m)
	default:
		w.end(m, nil)
		return true, nil
	}
}

func (w *call) takeResult(m *wire.Result) (whole bool, err error) {
	so, ok := w.answer.(*wire.Result)
	if w.answer == nil && m.Part == 0 {
		return w.took(m.Parts, m), nil
	}
	if !ok || m.Part != w.parts || m.Parts != so.Parts || m.Operation != so.Operation || m.Pages != so.Pages || m.Lease != so.Lease {
		return false, wire.Errorf(wire.StatusMalformed, "part %d of %d of the result of operation %d does not continue it", m.Part, m.Parts, m.Operation)
	}
	so.Runs = append(so.Runs, m.Runs...)
	return w.took(m.Parts, so), nil
}

func (w *call) takeReserved(m *wire.Reserved) (whole bool, err error) {
	so, ok := w.answer.(*wire.Reserved)
	if w.answer == nil && m.Part == 0 {
		return w.took(m.Parts, m), nil
	}
	if !ok || m.Part != w.parts || m.Parts != so.Parts || m.Operation != so.Operation || m.Pages != so.Pages || m.Reservation != so.Reservation {
		return false, wire.Errorf(wire.StatusMalformed, "part %d of %d of the grants of operation %d does not continue them", m.Part, m.Parts, m.Operation)
	}
	so.Runs = append(so.Runs, m.Runs...)
	so.Grants = append(so.Grants, m.Grants...)
	return w.took(m.Parts, so), nil
}

// took counts a part and ends the call with the last one; answer is the first part, which the others were joined to.
func (w *call) took(parts uint16, answer wire.Message) (whole bool) {
	w.answer = answer
	w.parts++
	if w.parts < parts {
		return false
	}
	w.end(answer, nil)
	return true
}
