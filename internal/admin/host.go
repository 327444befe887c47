package admin

import (
	"fmt"
	"net"
	"net/http"
	"strings"
)

// local refuses, on a loopback address, requests that call the server by a name of someone else: a page in a browser of this host may point its
// own name at the address and would read the answers as its own (DNS rebinding). On other addresses the server cannot know its names.
func (s *Server) local(next http.Handler) http.Handler {
	address, ok := s.listener.Addr().(*net.TCPAddr)
	if !ok || !address.IP.IsLoopback() {
		return next
	}
	configured := hostName(s.config.Address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostName(r.Host)
		if ip := net.ParseIP(name); ip.IsLoopback() || strings.EqualFold(name, "localhost") || strings.EqualFold(name, configured) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("the Host header is %q, and a server on a loopback address answers only to localhost, a loopback address or its --http-addr: ask http://%s", r.Host, s.Address()), http.StatusForbidden)
	})
}

// hostName is a host without port, brackets and the dot of a full name.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}
