package admin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneVerificationAtATime(t *testing.T) {
	r := newRig(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	r.verifying = func() { entered <- struct{}{}; <-leave }
	first := make(chan int)
	go func() {
		code, _ := r.ask("GET", "/verify", "")
		first <- code
	}()
	<-entered
	r.want("GET", "/verify", "", 503, "only one may")
	r.want("GET", "/healthz", "", 200, "ok")
	close(leave)
	if code := <-first; code != 200 {
		t.Errorf("the first verification: %d", code)
	}
	r.verifying = func() {}
	r.want("GET", "/verify", "", 200, `"ok": true`)
	r.want("GET", "/metrics", "", 200, `refused{bound="verifications"} 1`)
}

func TestTheCacheWorksLongerThanItIsVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		for _, test := range []struct{ takes, waits time.Duration }{
			{time.Millisecond, 0}, {time.Second, verifyRest * time.Millisecond}, {time.Minute, verifyRest * time.Second}, {0, verifyRestMax}, {0, 0},
		} {
			asked, started := time.Now(), time.Time{}
			err := g.pass(t.Context(), func() {
				started = time.Now()
				<-time.After(test.takes)
			})
			if waited := started.Sub(asked); err != nil || waited != test.waits {
				t.Errorf("waited %v, want %v: %v", waited, test.waits, err)
			}
		}
	})
}

func TestAnAskerThatGoesGivesItsTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		if err := g.pass(t.Context(), func() { <-time.After(time.Hour) }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ran := false
		if err := g.pass(ctx, func() { ran = true }); !errors.Is(err, context.DeadlineExceeded) || ran {
			t.Errorf("%v, ran %v", err, ran)
		}
		if err := g.pass(t.Context(), func() { ran = true }); err != nil || !ran {
			t.Errorf("the turn was lost: %v", err)
		}
	})
}
