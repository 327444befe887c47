package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SSD is the tier below the pool. Without a path there is none, and nothing else here has a meaning.
type SSD struct {
	Paths             []string // folders, absolute, each once
	CapacityBytes     uint64   // of all folders together
	CapacityDefault   bool     // nobody wrote a capacity
	Backend           string
	WriteQueueBatches uint64
	ReadQueueBatches  uint64
	WritesInflight    uint64
	ReadsInflight     uint64
	WritePolicy       string
	ScrubRate         uint64 // bytes/s, zero for none
	FaultInjection    string
}

// PathSeparator stands between the paths of a list.
const PathSeparator = ":"

// ssdFlags are the keys that mean nothing without a folder.
var ssdFlags = []string{
	FlagSSDCapacity, FlagSSDBackend, FlagSSDWriteQueue, FlagSSDReadQueue, FlagSSDWrites, FlagSSDReads, FlagSSDWritePolicy, FlagSSDScrub, FlagSSDFaults,
}

// readTiers reads what decides between pool and SSD.
func (r *reader) readTiers(cfg *Config) {
	cfg.ReadBatchBytes = r.sizeInTable(FlagReadBatch)
	cfg.StopPolicy = r.word(FlagStopPolicy)
	cfg.ReadTimeout = r.readTimeout(cfg.StopPolicy)
	cfg.ProtectedPercent = r.number(FlagProtected)
	cfg.LFUAdmission = r.bool(FlagLFU)
	cfg.PoolScrubRate = r.sizeInTable(FlagPoolScrub)
	cfg.SSD = r.ssd()
}

func (r *reader) ssd() SSD {
	s := SSD{Paths: r.paths(FlagSSDPath)}
	if len(s.Paths) == 0 {
		for _, flag := range ssdFlags {
			if _, written := r.text(flag); written {
				r.fail(flag, fmt.Errorf("this is of the SSD tier, and there is none: name a folder with --%s, or leave it out", FlagSSDPath))
			}
		}
		return SSD{}
	}
	s.CapacityBytes = r.capacity(len(s.Paths))
	_, written := r.text(FlagSSDCapacity)
	s.CapacityDefault = !written
	s.Backend = r.word(FlagSSDBackend)
	s.WriteQueueBatches = r.number(FlagSSDWriteQueue)
	s.ReadQueueBatches = r.number(FlagSSDReadQueue)
	s.WritesInflight = r.number(FlagSSDWrites)
	s.ReadsInflight = r.number(FlagSSDReads)
	s.WritePolicy = r.word(FlagSSDWritePolicy)
	s.ScrubRate = r.sizeInTable(FlagSSDScrub)
	s.FaultInjection, _ = r.text(FlagSSDFaults)
	return s
}

// capacity reads the capacity of so many folders.
func (r *reader) capacity(folders int) uint64 {
	bytes := r.sizeInTable(FlagSSDCapacity)
	if bytes/uint64(folders) < SSDFolderBytesMin {
		r.fail(FlagSSDCapacity, fmt.Errorf("%s for %d folders: each needs %s at least: raise the capacity or name fewer folders", FormatSize(bytes), folders, FormatSize(SSDFolderBytesMin)))
	}
	return bytes
}

// readTimeout takes a time with its policy alone: elsewhere it would be written and do nothing.
func (r *reader) readTimeout(policy string) time.Duration {
	_, written := r.text(FlagReadTimeout)
	switch {
	case policy != StopTimeout && written:
		r.fail(FlagReadTimeout, fmt.Errorf("only --%s %s has a time: name that policy, or leave the time out", FlagStopPolicy, StopTimeout))
	case policy == StopTimeout && !written:
		r.fail(FlagStopPolicy, fmt.Errorf("%s needs a time: add --%s", StopTimeout, FlagReadTimeout))
	case written:
		return time.Duration(r.number(FlagReadTimeout)) * time.Millisecond
	}
	return 0
}

// written returns what was written for a key, or its default.
func (r *reader) written(flag string) string {
	if text, ok := r.text(flag); ok {
		return text
	}
	return Find(flag).Default
}

// word reads a key that takes one of the words of its row.
func (r *reader) word(flag string) string {
	text, words := r.written(flag), Find(flag).Words
	if !slices.Contains(words, text) {
		r.fail(flag, fmt.Errorf("%q is none of %s", text, strings.Join(words, ", ")))
	}
	return text
}

// number reads a whole number inside the bounds of its row.
func (r *reader) number(flag string) uint64 {
	text, key := r.written(flag), Find(flag)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < uint64(key.Least) || n > uint64(key.Most) {
		r.fail(flag, fmt.Errorf("%q is not a whole number from %d to %d", text, key.Least, key.Most))
	}
	return n
}

// sizeInTable reads a size whose default and bounds stand in its row.
func (r *reader) sizeInTable(flag string) uint64 {
	key := Find(flag)
	bytes := r.parseSize(flag, r.written(flag), uint64(key.Least))
	if key.Most > 0 && bytes > uint64(key.Most) {
		r.fail(flag, fmt.Errorf("%s is over the most of %s", FormatSize(bytes), FormatSize(uint64(key.Most))))
	}
	return bytes
}

// paths reads a list of paths, absolute and without twins. An empty one has none.
func (r *reader) paths(flag string) (paths []string) {
	text, ok := r.text(flag)
	if !ok || text == "" {
		return nil
	}
	for path := range strings.SplitSeq(text, PathSeparator) {
		if path == "" {
			r.fail(flag, errNoPath)
			continue
		}
		path = absolute(path)
		if slices.Contains(paths, path) {
			r.fail(flag, fmt.Errorf("%s is named twice: two folders of one name are one", path))
		}
		paths = append(paths, path)
	}
	return paths
}
