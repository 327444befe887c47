// Package admin is the loopback HTTP side of the Manager: health, metrics, status, verification and the verbs that change state.
//
// It owns the HTTP server, the bearer token and the gate that lets one verification at a time through. It reads the Manager through the functions of
// Config and holds no state of the cache. Handlers run concurrently, one goroutine a request, and take no lock of this package. It must not
// be on a request's path of any engine, and no verb may free memory that is in use: the cache decides that.
package admin
