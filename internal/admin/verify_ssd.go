package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"orbitkv/internal/ssd"
)

const progressEvery = time.Second // of a verification of the SSD

// SSDLine is one line of the answer of /verify/ssd: one of its members. The last line is the end; an answer without it broke off.
type SSDLine struct {
	Problem  *SSDProblem  `json:"problem,omitempty"`
	Progress *SSDProgress `json:"progress,omitempty"`
	End      *SSDEnd      `json:"end,omitempty"`
}

// SSDProblem is a page that is not as it was written.
type SSDProblem struct {
	Folder    string `json:"folder"`
	Namespace string `json:"namespace"` // digest of its facts, hexadecimal
	Epoch     uint64 `json:"epoch"`
	Group     uint16 `json:"group"`
	Key       string `json:"key"`    // hexadecimal
	Offset    uint64 `json:"offset"` // in the payload file, bytes
	Bytes     uint64 `json:"bytes"`
	Reason    string `json:"reason"` // digest, io, short or header
}

// SSDProgress is how far a verification is.
type SSDProgress struct {
	Pages uint64 `json:"pages"`
	Bytes uint64 `json:"bytes"`
	Of    uint64 `json:"of_pages"` // that were stored at its begin
}

// SSDEnd is what a verification found.
type SSDEnd struct {
	OK       bool   `json:"ok"`
	Pages    uint64 `json:"pages"` // that were read
	Bytes    uint64 `json:"bytes"`
	Problems uint64 `json:"problems"`
	Error    string `json:"error,omitempty"` // why it did not come to its end
}

// VerifySSD is ssd.Store.Verify of the running Manager's store.
type VerifySSD func(ctx context.Context, rate uint64, problem func(ssd.Problem), progress func(ssd.VerifyReport)) (ssd.VerifyReport, error)

// ProblemOf is what people and programs are told of a problem.
func ProblemOf(p ssd.Problem) SSDProblem {
	return SSDProblem{
		Folder: p.Volume, Namespace: hex.EncodeToString(p.Identity[:]), Epoch: p.Epoch, Group: p.Group, Key: hex.EncodeToString(p.Key[:]), Offset: p.Offset,
		Bytes: p.Bytes, Reason: p.Reason,
	}
}

// EndOf is what they are told at the end.
func EndOf(found ssd.VerifyReport, err error) SSDEnd {
	end := SSDEnd{OK: err == nil && found.Problems == 0, Pages: found.Pages, Bytes: found.Bytes, Problems: found.Problems}
	if err != nil {
		end.Error = err.Error()
	}
	return end
}

// verifySSD streams lines while the pages are read, which may take hours. It takes disk and processor from engines, so it needs the token.
func (s *Server) verifySSD(w http.ResponseWriter, r *http.Request) {
	switch {
	case !s.allowed(r):
		s.demandToken(w, "this reads the whole SSD")
		return
	case s.config.VerifySSD == nil:
		http.Error(w, "there is no SSD tier: the Manager was started without --ssd-cache-path", http.StatusNotFound)
		return
	}
	rate, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("rate"), "0"), 10, 64)
	if err != nil {
		http.Error(w, "rate is a whole number of bytes a second, or 0 for as fast as it goes", http.StatusBadRequest)
		return
	}
	select {
	case s.verifyingSSD <- struct{}{}:
		defer func() { <-s.verifyingSSD }()
	default:
		s.config.Refused.WithLabelValues("verifications").Inc()
		http.Error(w, errVerifying.Error(), http.StatusServiceUnavailable)
		return
	}
	out := &lines{to: w, control: http.NewResponseController(w), told: time.Now()}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if status := s.config.Status(); status.SSD != nil {
		out.of = status.SSD.pages()
	}
	found, err := s.config.VerifySSD(r.Context(), rate, out.problem, out.progress)
	end := EndOf(found, err)
	out.write(SSDLine{End: &end})
	s.config.Log.Info("SSD verified", "pages", end.Pages, "bytes", end.Bytes, "problems", end.Problems, "error", end.Error)
}

// lines writes the answer of one verification.
type lines struct {
	to      http.ResponseWriter
	control *http.ResponseController
	of      uint64    // pages that are stored
	told    time.Time // of the last progress
}

func (l *lines) problem(p ssd.Problem) {
	problem := ProblemOf(p)
	l.write(SSDLine{Problem: &problem})
}

func (l *lines) progress(r ssd.VerifyReport) {
	if time.Since(l.told) < progressEvery {
		return
	}
	l.told = time.Now()
	l.write(SSDLine{Progress: &SSDProgress{Pages: r.Pages, Bytes: r.Bytes, Of: l.of}})
}

// write gives a reader answerWait for each line.
func (l *lines) write(line SSDLine) {
	err := l.control.SetWriteDeadline(time.Now().Add(answerWait))
	if err == nil {
		err = json.NewEncoder(l.to).Encode(line)
	}
	if err == nil {
		err = l.control.Flush()
	}
	if err != nil {
		return // the reader has gone: the server ends the request's context, and so the verification
	}
}

// demandToken answers a request that lacks the token.
func (s *Server) demandToken(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, fmt.Sprintf("%s and needs the token: -H \"Authorization: Bearer $(cat %s)\"", why, s.config.Token.Path), http.StatusUnauthorized)
}
