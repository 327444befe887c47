package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/ssd"
)

// authorization is what a request with the token says.
func (r *rig) authorization() string {
	r.Helper()
	text, err := os.ReadFile(r.token.Path)
	if err != nil {
		r.Fatal(err)
	}
	return "Bearer " + strings.TrimSpace(string(text))
}

// verified sends a verification and returns the lines of its answer.
func (r *rig) verified(query string) (found []SSDLine) {
	r.Helper()
	code, body := r.ask("GET", "/verify/ssd"+query, r.authorization())
	if code != http.StatusOK {
		r.Fatalf("%d: %s", code, body)
	}
	for line := range strings.Lines(body) {
		var one SSDLine
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			r.Fatalf("%q: %v", line, err)
		}
		found = append(found, one)
	}
	return found
}

func TestVerifyingTheSSDStreamsWhatIsWrong(t *testing.T) {
	r := newRig(t)
	var rates []uint64
	r.server.config.VerifySSD = func(_ context.Context, rate uint64, problem func(ssd.Problem), progress func(ssd.VerifyReport)) (ssd.VerifyReport, error) {
		rates = append(rates, rate)
		progress(ssd.VerifyReport{Pages: 1, Bytes: 4096})
		problem(ssd.Problem{Volume: "/a", Identity: [32]byte{1}, Epoch: 7, Group: 2, Key: ssd.Key{31: 0xff}, Offset: 8192, Bytes: 4096, Reason: ssd.ReasonDigest})
		return ssd.VerifyReport{Pages: 2, Bytes: 8192, Problems: 1}, nil
	}
	found := r.verified("?rate=1000")
	want := SSDProblem{
		Folder: "/a", Namespace: "01" + strings.Repeat("00", 31), Epoch: 7, Group: 2, Key: strings.Repeat("00", 31) + "ff", Offset: 8192, Bytes: 4096, Reason: "digest",
	}
	end := found[len(found)-1].End
	if len(found) != 2 || found[0].Problem == nil || *found[0].Problem != want || end == nil || *end != (SSDEnd{Pages: 2, Bytes: 8192, Problems: 1}) {
		t.Errorf("%+v, the end %+v", found, end)
	}
	r.verified("")
	if !slices.Equal(rates, []uint64{1000, 0}) {
		t.Errorf("rates %v", rates)
	}
	r.want("GET", "/verify/ssd?rate=fast", r.authorization(), 400, "whole number")
}

func TestAVerificationOfTheSSDThatBreaksOffSaysSo(t *testing.T) {
	r := newRig(t)
	r.server.config.VerifySSD = func(context.Context, uint64, func(ssd.Problem), func(ssd.VerifyReport)) (ssd.VerifyReport, error) {
		return ssd.VerifyReport{Pages: 3}, errors.New("the Manager stops")
	}
	if found := r.verified(""); len(found) != 1 || found[0].End == nil || *found[0].End != (SSDEnd{Pages: 3, Error: "the Manager stops"}) {
		t.Errorf("%+v", found)
	}
}

func TestVerifyingTheSSDNeedsTokenAndSSDAndItsTurn(t *testing.T) {
	r := newRig(t)
	r.want("GET", "/verify/ssd", "", 401, r.token.Path)
	r.want("GET", "/verify/ssd", r.authorization(), 404, "--ssd-cache-path")
	r.server.config.VerifySSD = func(context.Context, uint64, func(ssd.Problem), func(ssd.VerifyReport)) (ssd.VerifyReport, error) {
		return ssd.VerifyReport{}, nil
	}
	r.server.verifyingSSD <- struct{}{}
	r.want("GET", "/verify/ssd", r.authorization(), 503, "only one may")
	<-r.server.verifyingSSD
	r.want("GET", "/verify/ssd", r.authorization(), 200, `"ok":true`)
}

func TestTheEndOfTheAskerEndsAVerificationOfTheSSD(t *testing.T) {
	r := newRig(t)
	begun, ended := make(chan struct{}), make(chan error)
	r.server.config.VerifySSD = func(ctx context.Context, _ uint64, problem func(ssd.Problem), _ func(ssd.VerifyReport)) (ssd.VerifyReport, error) {
		problem(ssd.Problem{Reason: ssd.ReasonIO}) // the answer begins, so that its asker can leave
		close(begun)
		<-ctx.Done()
		ended <- ctx.Err()
		return ssd.VerifyReport{}, ctx.Err()
	}
	ctx, leave := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.server.Address()+"/verify/ssd", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", r.authorization())
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Error(err)
	}
}
