package metrics

import "github.com/prometheus/client_golang/prometheus"

// Channel is what the session layer counts itself. Its members are safe for concurrent use.
type Channel struct {
	Sessions prometheus.Counter     // sessions that were opened
	Frames   prometheus.Counter     // frames that were read after hello
	Closed   *prometheus.CounterVec // connections that the Manager closed, by reason
	Turned   *prometheus.CounterVec // connections that were turned away, by reason
	Refused  *prometheus.CounterVec // calls that were answered with an error, by status
}

// Reasons of Channel.Turned.
const (
	ReasonBound  = "bound"  // as many as the Manager takes were open
	ReasonSystem = "system" // the kernel gave no descriptor or memory
)

// Reasons of Channel.Closed beside the statuses of the channel.
const (
	ReasonUnread  = "unread"  // an answer found the outbox full: the client does not read
	ReasonCrowded = "crowded" // an answer that its client did not read at once found no room beside the unread answers of all
	ReasonCut     = "cut"     // the connection ended inside a frame
)

func newChannel(reg prometheus.Registerer) *Channel {
	c := &Channel{
		Sessions: prometheus.NewCounter(options(sessionsOpened)),
		Frames:   prometheus.NewCounter(options(framesRead)),
		Closed:   prometheus.NewCounterVec(options(connectionsClosed), connectionsClosed.labels),
		Turned:   prometheus.NewCounterVec(options(connectionsRefused), connectionsRefused.labels),
		Refused:  prometheus.NewCounterVec(options(callsRefused), callsRefused.labels),
	}
	reg.MustRegister(c.Sessions, c.Frames, c.Closed, c.Turned, c.Refused)
	return c
}

func options(r row) prometheus.CounterOpts {
	return prometheus.CounterOpts{Name: r.name, Help: r.help}
}
