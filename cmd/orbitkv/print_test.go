package main

import (
	"strings"

	"orbitkv/internal/admin"
	"orbitkv/internal/ssd"
)

// statusWithSSD is a status with a folder that is on and one that is off.
func statusWithSSD() admin.Status {
	return admin.Status{SSD: &admin.SSD{
		Stats: ssd.Stats{Pages: map[string]uint64{"probationary": 1, "retained": 2}, RecoveredPages: 5, ScrubPagesTotal: 7, DamagedPagesTotal: map[string]uint64{ssd.FoundByRead: 1, ssd.FoundByVerify: 3}},
		Volumes: []ssd.VolumeStatus{
			{Name: "/very/" + strings.Repeat("long", 20), State: "on", Engine: "pool", EngineReason: "pool: no ring: EPERM", CapacityBytes: 1 << 30, PayloadBytes: 512 << 20},
			{Name: "/b", State: "off", Reason: "EIO"},
		},
	}}
}
