package admin

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestALoopbackServerAnswersToItsOwnNamesOnly(t *testing.T) {
	r := newRig(t)
	_, port, _ := strings.Cut(r.server.Address(), ":")
	for host, want := range map[string]int{
		"localhost": 200, "LocalHost:" + port: 200, "localhost.:80": 200, "127.0.0.1": 200, "127.0.0.2:" + port: 200, "[::1]:" + port: 200, "[::1]": 200,
		"evil.example": 403, "evil.example:" + port: 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "192.0.2.1": 403,
	} {
		for _, path := range []string{"/status", "/healthz"} {
			request, err := http.NewRequest("GET", "http://"+r.server.Address()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = host
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil || answer.StatusCode != want || want == 403 && !strings.Contains(string(body), "answers only to localhost") {
				t.Errorf("%s with host %q: %d %q, want %d: %v", path, host, answer.StatusCode, body, want, err)
			}
		}
	}
}
