package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orbitkv/internal/config"
	"orbitkv/internal/ssd"
	"orbitkv/internal/vfs"
)

// heard lets findings read an answer and returns what was printed.
func heard(answer string) (printed string, err error) {
	var out bytes.Buffer
	f := &findings{to: &out, progress: &out, told: time.Now()}
	if err = f.read(strings.NewReader(answer)); err == nil {
		err = f.conclude()
	}
	return out.String(), err
}

func TestTheLinesOfAVerificationArePrintedAndJudged(t *testing.T) {
	problem := `{"problem": {"folder": "/a\u001b[2J", "namespace": "aa", "epoch": 3, "group": 1, "key": "00ff", "offset": 8192, "bytes": 4096, "reason": "digest"}}` + "\n"
	printed, err := heard(`{"progress": {"pages": 1, "bytes": 4096, "of_pages": 2}}` + "\n" + problem + `{"end": {"ok": false, "pages": 2, "bytes": 8192, "problems": 1}}` + "\n")
	if !errors.Is(err, errSilent) {
		t.Errorf("%v, want a bad end that was printed", err)
	}
	for _, part := range []string{"1 of 2 pages, 4 KiB\n", "page 00ff of group 1, namespace aa epoch 3, 4 KiB: digest\n", "1 of 2 pages, 8 KiB are not"} {
		if !strings.Contains(printed, part) {
			t.Errorf("%q is not in %q", part, printed)
		}
	}
	if strings.Contains(printed, "\x1b") {
		t.Errorf("a control character was printed: %q", printed)
	}
	if printed, err := heard(`{"end": {"ok": true, "pages": 2, "bytes": 8192}}`); err != nil || !strings.Contains(printed, "every page is as it was written") {
		t.Errorf("%v, %q", err, printed)
	}
}

func TestAVerificationThatDidNotEndIsNoGoodNews(t *testing.T) {
	for answer, word := range map[string]string{
		"":                                  "broke off",
		`{"progress": {"pages": 1}}` + "\n": "broke off",
		`{"end": {"ok": false, "pages": 7, "error": "the store closes"}}`: "7 were: the store closes",
		`<html>`: "another program",
		`{"problem": {"key": "` + strings.Repeat("0", lineBytesMax) + `"}}`: "broke off",
	} {
		if printed, err := heard(answer); err == nil || errors.Is(err, errSilent) || !strings.Contains(err.Error(), word) {
			t.Errorf("%.40q: %v, want %q; printed %q", answer, err, word, printed)
		}
	}
}

// A folder that was a volume and lacks a file is no good news, whichever it is, and looking at it changes nothing.
func TestAFolderThatLacksAFileEndsWithOne(t *testing.T) {
	folder := t.TempDir()
	disk, err := vfs.NewOS(folder)
	if err != nil {
		t.Fatal(err)
	}
	store, err := ssd.Open(ssd.Config{
		Volumes: []ssd.VolumeConfig{{FS: disk}}, CapacityBytes: 24 << 20, Backend: config.BackendPool, Memory: func(uint64, uint64) []byte { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if out, stderr, code := run(t, "verify", "--ssd-cache-path", folder); code != 0 {
		t.Fatalf("a whole folder: %d, %s%s", code, out, stderr)
	}
	for _, loss := range []struct{ file, word string }{
		{"index", "it may hold pages; `orbitkv verify --ssd-cache-path " + folder + " --rebuild-index` finds them"},
		{"payload", "no file named payload"},
		{"superblock", "no file named superblock"},
	} {
		if err := os.Remove(filepath.Join(folder, loss.file)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			out, stderr, code := run(t, "verify", "--ssd-cache-path", folder)
			if code != 1 || out != "" || !strings.Contains(stderr, loss.word) || strings.Contains(stderr, "verify --ssd`") {
				t.Errorf("without %s: code %d, %s%s", loss.file, code, out, stderr)
			}
		}
		if _, err := os.Stat(filepath.Join(folder, loss.file)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made (%v)", loss.file, err)
		}
	}
}

func TestAnSSDShowsInTheStatus(t *testing.T) {
	var out bytes.Buffer
	status := statusWithSSD()
	if err := printStatus(&out, status); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"3 pages (2 retained)", "5 found at the start", "7 pages by the scrubber", "4 damaged (1 found by reads, 0 by the scrubber, 3 by verifications)", "/very/" + strings.Repeat("long", 20), "off, 0 B", "0 B (0.0 %) of 512 MiB for pages; 1 GiB reserved", "pool (no ring: EPERM)"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in\n%s", part, &out)
		}
	}
	status.SSD = nil
	out.Reset()
	if err := printStatus(&out, status); err != nil || strings.Contains(out.String(), "ssd") {
		t.Errorf("%v: without an SSD\n%s", err, &out)
	}
}

func TestAPathMayBeWrittenSeveralTimes(t *testing.T) {
	cmd := serveCommand()
	if err := cmd.ParseFlags([]string{"--ssd-cache-path", "/a", "--ssd-cache-path=/b:/c", "--pool-size", "1gib", "--pool-size", "2gib"}); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"ssd-cache-path": "/a:/b:/c", "pool-size": "2gib"} {
		if got, ok := flagsOf(cmd)(flag); !ok || got != want {
			t.Errorf("--%s is %q, %v; want %q", flag, got, ok, want)
		}
	}
}
