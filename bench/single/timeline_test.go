package single

import (
	"strings"
	"testing"

	"orbitkv/bench/record"
)

func TestATimelineBeyondItsBoundIsSaid(t *testing.T) {
	const log = "INFO cache_timeline {\"stage\":\"a\"}\nother text\ncache_timeline {\"stage\":\"b\"}\ncache_timeline {\"sta\ncache_timeline {\"stage\":\"c\"}\n"
	for _, test := range []struct {
		most, kept int
		more       bool
	}{{1, 1, true}, {2, 2, true}, {3, 3, false}, {4, 3, false}} {
		path := t.TempDir()
		dir, err := record.Create(path, record.Manifest{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &stage{run: &run{dir: dir}, backend: record.OrbitKV}
		more, err := s.takeTimeline(strings.NewReader(log), test.most)
		if err != nil || more != test.more {
			t.Errorf("of 3 records, at most %d: more %v (%v), want %v", test.most, more, err, test.more)
		}
		if err := dir.Close(record.Complete); err != nil {
			t.Fatal(err)
		}
		kept, err := record.Load(path)
		if err != nil || len(kept.Timeline) != test.kept {
			t.Errorf("of 3 records, at most %d: %d are kept (%v), want %d", test.most, len(kept.Timeline), err, test.kept)
		}
	}
}
