package admin

import (
	"fmt"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// The states of a folder that failed, and of one whose writes did.
const (
	volumeOff      = "off"
	volumeReadOnly = "read_only"
)

// stalledPercent is the part of the pool above which stalled bytes degrade the health.
const stalledPercent = 10

// Status is the answer of /status.
type Status struct {
	Health        string       `json:"health"`  // ok or degraded
	Reasons       []string     `json:"reasons"` // why it is degraded
	Version       string       `json:"version"`
	PID           int          `json:"pid"`
	Incarnation   string       `json:"incarnation"`
	UptimeSeconds uint64       `json:"uptime_seconds"`
	Socket        string       `json:"socket"`
	SocketError   string       `json:"socket_error,omitempty"` // why no new client finds the socket
	HTTPAddress   string       `json:"http_address"`           // set by the server
	Connections   int          `json:"connections"`
	Pool          Pool         `json:"pool"`
	Cache         cache.Status `json:"cache"`
	SSD           *SSD         `json:"ssd,omitempty"` // nil without an SSD tier
}

// SSD is the tier below the pool.
type SSD struct {
	Volumes        []ssd.VolumeStatus `json:"volumes"`
	Stats          ssd.Stats          `json:"stats"`
	DemandsDropped uint64             `json:"demands_dropped_total"` // queries whose pages it was not told of
}

// pages is how many can be read.
func (s *SSD) pages() (sum uint64) {
	for _, n := range s.Stats.Pages {
		sum += n
	}
	return sum
}

// judge says what is wrong with the tier.
func (s *SSD) judge() (reasons []string) {
	for _, v := range s.Volumes {
		if v.Hangs {
			reasons = append(reasons, fmt.Sprintf("the SSD folder %s hangs, and its pages are misses until it answers: %s; look at the device", v.Name, v.Reason))
		}
		switch v.State {
		case volumeReadOnly:
			reasons = append(reasons, fmt.Sprintf("the SSD folder %s is read-only, and no pages are added to it: %s", v.Name, v.Reason))
		case volumeOff:
			reasons = append(reasons, fmt.Sprintf("the SSD folder %s is off, and its pages are misses: %s; mend it, then restart the Manager", v.Name, v.Reason))
		}
	}
	return reasons
}

// Pool is how far the memory is.
type Pool struct {
	ConfiguredBytes uint64 `json:"configured_bytes"`
	PopulatedBytes  uint64 `json:"populated_bytes"`
	HugePages       bool   `json:"huge_pages"`
	Arenas          int    `json:"arenas"`
	PopulatedArenas int    `json:"populated_arenas"`
	Error           string `json:"error,omitempty"` // why population stopped
}

// Judge sets the health from the rest of the status.
func (s *Status) Judge(stalledBytes, quarantinedBytes uint64) {
	s.Reasons = []string{}
	if s.SocketError != "" {
		s.Reasons = append(s.Reasons, s.SocketError)
	}
	if s.Pool.Error != "" {
		s.Reasons = append(s.Reasons, "the pool is smaller than configured: "+s.Pool.Error)
	}
	if stalledBytes > s.Pool.ConfiguredBytes/100*stalledPercent {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d bytes, more than %d %% of the pool, are held by sessions that do not answer: end their processes", stalledBytes, stalledPercent))
	}
	if quarantinedBytes > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d bytes are quarantined: nobody can say that their last writer has stopped; a restart of the Manager frees them", quarantinedBytes))
	}
	if s.SSD != nil {
		s.Reasons = append(s.Reasons, s.SSD.judge()...)
	}
	s.Health = "ok"
	if len(s.Reasons) > 0 {
		s.Health = "degraded"
	}
}
