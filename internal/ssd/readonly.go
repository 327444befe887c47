package ssd

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
)

// stopWrites ends writing to a volume whose writes fail. Its pages are read as before: they were durable when they became visible, and each read is
// compared with its digest. What is not durable ends as a failure; it was never visible.
//
// A file system that is full is tried again. After any other error it is not known what the device, and the kernel for it, still has: a barrier that
// failed may have forgotten what it was for, and the next one would not tell. Only a restart, which reads what there is, goes on from there. So such an
// error also ends the attempts on a file system that is full.
func (v *volume) stopWrites(what string, cause error) {
	full := noSpace(cause)
	switch {
	case v.on():
		volumeMachine.To(&v.state, volumeReadOnly)
	case !v.readable() || !v.full || full:
		return
	}
	v.full, v.retryAt = full, v.store.config.Now().Add(retryEvery)
	remedy := "and nothing is written until a restart; look at the device and at the kernel's log"
	if v.full {
		remedy = fmt.Sprintf("and it is tried again every %v; make room on its file system", retryEvery)
	}
	v.reason = fmt.Sprintf("%s: %v. Its pages are still read, %s", what, cause, remedy)
	v.store.say(slog.LevelError, "a volume of the SSD cache takes no more writes", "volume", v.name, "reason", v.reason)
	v.refuseWrites()
	v.changed.Broadcast()
}

// mayResume says whether a volume may be tried again. Nothing that was written before its failure may be under way: a barrier that failed may have been
// for it as well.
func (v *volume) mayResume() bool {
	return v.state == volumeReadOnly && v.full && v.unrecorded == 0
}

func (v *volume) retryIsDue() bool {
	return v.mayResume() && !v.store.config.Now().Before(v.retryAt)
}

// checkRetry wakes the goroutine that commits when the volume is to be tried again.
func (v *volume) checkRetry() {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	if v.retryIsDue() {
		v.changed.Broadcast()
	}
}

// resume tries to write to a volume again. The end of its index log is not known, so that nothing is appended to it: a new log takes its place, which says
// what is in memory. Where that cannot be written the volume stays as it was.
func (v *volume) resume() {
	s := v.store
	s.counters.writeRetries++
	ops := v.ops
	v.ops = nil
	order := v.order()
	err := v.logged(func() error { return v.renew(ops, v.snapshot(order)) })
	if !v.readable() {
		return
	}
	if err != nil {
		v.ops = append(ops, v.ops...)
		v.retryAt = s.config.Now().Add(retryEvery)
		v.stopWrites("the index log could not be written anew", err)
		return
	}
	volumeMachine.To(&v.state, volumeOn)
	v.reason, v.failures[writes], v.uncleared = "", 0, nil
	v.settled(ops)
	s.say(slog.LevelInfo, "a volume of the SSD cache takes writes again", "volume", v.name)
}

// renew writes a new index log. What ops dropped is not in it.
func (v *volume) renew(ops []op, pages iter.Seq[journal.Put]) error {
	for _, o := range ops {
		if o.kind == opDropNamespace {
			v.journal.DropNamespace(o.number)
		}
	}
	if err := v.keepCleared(); err != nil {
		return err
	}
	return v.journal.Renew(pages)
}

// clearReadOnly makes the clear of a volume that takes no pages durable all the same, where its device lets it.
func (v *volume) clearReadOnly() {
	s := v.store
	clears := v.clears
	v.ops = slices.DeleteFunc(v.ops, func(o op) bool { return o.kind == opClear })
	s.leave()
	err := v.wipe()
	s.mu.Lock()
	v.uncleared = err
	if v.readable() { // else erase has taken them over
		v.clears -= clears
	}
	v.changed.Broadcast()
}

// forget lets a volume that is off be cleared, off the mutex. Close waits for that. Nothing is written to it any more, so that one erase is for all clears
// that come while it runs.
func (v *volume) forget() {
	if v.erasing {
		return
	}
	v.erasing = true
	v.store.outstanding++
	go v.store.told(v.erase)
}

// erase makes the clear of a volume that is off durable: its pages would be back at the next start.
func (v *volume) erase() {
	v.tasks.Wait() // what still commits may give a log its name
	err := v.wipe()
	s := v.store
	s.mu.Lock()
	defer s.mu.Unlock()
	v.erasing = false
	v.uncleared = err
	v.changed.Broadcast()
}

// wipe makes it durable without the index log that a volume was cleared: by its superblock, or else by removing the log. The error says what an operator
// must do before a restart. Nothing else uses the journal meanwhile.
func (v *volume) wipe() error {
	if v.journal != nil {
		v.journal.Clear()
		exists, err := v.fs.Exists(format.SuperblockName) // not where somebody deleted the files
		if err == nil && exists && v.keepCleared() == nil {
			return nil
		}
	}
	err := v.fs.Remove(format.IndexName)
	if err == nil {
		err = v.fs.SyncFolder()
	}
	if err != nil {
		v.store.config.Log.Error("a volume of the SSD cache that takes no writes could not be cleared: remove the file of its index before the next start",
			"volume", v.name, "file", format.IndexName, "error", err)
		err = fmt.Errorf("%s takes no writes and could not be cleared: its pages are misses, but come back with a restart; remove its file %s before one: %w",
			v.name, format.IndexName, err)
	}
	return err
}
