package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// traced is a rig whose cache keeps what it tells of queries that read.
func traced(t *testing.T, pages int) (*rig, *bench, *engine, *[]Milestone) {
	told := &[]Milestone{}
	r, b, e := tierRig(t, Config{Trace: func(m Milestone) { *told = append(*told, m) }}, pages)
	return r, b, e, told
}

func TestAQueryThatReadsTellsWhenItBeganAndWhatItGot(t *testing.T) {
	r, b, e, told := traced(t, 6)
	r.publish(e, keysOf(2, 2)) // resident again, in the middle
	got := r.query(e, keysOf(0, 6))
	r.clock.forward(70 * time.Millisecond)
	r.endReads(b)
	r.outcome(e, got.Operation, 1, wire.OutcomeReady)
	want := []Milestone{
		{Stage: StageReadStart, Request: fmt.Sprint(got.Operation), Instance: e.id, Pages: 4, Bytes: 4 * page},
		{Stage: StageHostReady, Request: fmt.Sprint(got.Operation), Instance: e.id, Elapsed: 70 * time.Millisecond, Hits: 6, Pages: 4, Bytes: 4 * page},
	}
	if !slices.Equal(*told, want) {
		t.Fatalf("told %+v\nnot  %+v", *told, want)
	}
}

func TestAStoppedQueryTellsWhatItHas(t *testing.T) {
	r, b, e, told := traced(t, 6)
	got := r.query(e, keysOf(0, 6))
	r.endRead(b, 0, true)
	_, err := r.StopQuery(e.scheduler.id, got.Operation, 1)
	r.must(err)
	r.endReads(b)
	if len(*told) != 2 || (*told)[1].Hits != 1 || (*told)[1].Pages != 1 {
		t.Fatalf("told %+v", *told)
	}
}

func TestAQueryThatReadsNothingOrIsGivenUpTellsNoAnswer(t *testing.T) {
	r, b, e, told := traced(t, 6)
	cancelled := r.query(e, keysOf(0, 6))
	r.must(r.CancelQuery(e.scheduler.id, cancelled.Operation, 1))
	r.endReads(b)
	if len(*told) != 1 || (*told)[0].Stage != StageReadStart {
		t.Fatalf("told %+v", *told)
	}
	resident := r.query(e, keysOf(0, 6))
	if resident.Outcome != wire.OutcomeReady || len(*told) != 1 {
		t.Fatalf("%+v, told %+v", resident, *told)
	}
}

func TestAQueryWhoseFirstReadIsRefusedTellsNothing(t *testing.T) {
	r, b, e, told := traced(t, 4)
	r.publish(e, keysOf(0, 2))
	b.refuses = true
	if got := r.query(e, keysOf(0, 4)); got.Pages != 2 || len(*told) != 0 {
		t.Fatalf("%+v, told %+v", got, *told)
	}
}

func TestAHintTellsThatItReadsAheadAndOnlyItsOwnEndIsReady(t *testing.T) {
	r, b, e, told := traced(t, 6)
	r.hints(e, "a", keysOf(0, 6), wire.HintAccepted, 6)
	r.clock.forward(30 * time.Millisecond)
	r.endReads(b)
	want := []Milestone{
		{Stage: StageReadStart, Request: "a", Instance: e.id, Warmup: true, Pages: 6, Bytes: 6 * page},
		{Stage: StageHostReady, Request: "a", Instance: e.id, Warmup: true, Elapsed: 30 * time.Millisecond, Pages: 6, Bytes: 6 * page},
	}
	if !slices.Equal(*told, want) {
		t.Fatalf("told %+v\nnot  %+v", *told, want)
	}
	*told = nil
	r.Cleanup()
	r.hints(e, "b", keysOf(0, 6), wire.HintAccepted, 6)
	r.endRead(b, 0, false)
	r.endReads(b)
	if len(*told) != 1 || (*told)[0].Stage != StageReadStart {
		t.Fatalf("told of a hint that broke off: %+v", *told)
	}
}
