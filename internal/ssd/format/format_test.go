package format

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden bytes anew")

const goldenFile = "testdata/golden.txt"

// count fills b with numbers that differ from byte to byte.
func count(b []byte, from byte) {
	for i := range b {
		b[i] = from + byte(i)
	}
}

// samples are one of each structure, by name, with every field set.
func samples() map[string][]byte {
	var volume, digest [16]byte
	var identity, key [32]byte
	count(volume[:], 0x10)
	count(digest[:], 0x30)
	count(identity[:], 0x50)
	count(key[:], 0x80)
	super := Superblock{Volume: volume, PayloadBytes: 0x0102030405060000, Cleared: 0x4142434445464748}
	header := LogHeader{Volume: volume, Generation: 0x1112131415161718, Snapshot: 0x2122232425262728, Sequence: 0x7132333435363738}
	paged := PageHeader{
		Volume: volume, Identity: identity, Epoch: 0x5152535455565758, PageBytes: 0x6162636465666768, Key: key, Group: 0x7172,
		Offset: 0x0182838485869000, Bytes: 0x919293949596A000, Digest: digest, Sequence: 0xA1A2A3A4A5A6A7A8,
	}
	records := map[string]Record{
		"put": {
			Kind: KindPut, Retained: true, Group: paged.Group, Namespace: 0xB1B2B3B4, Key: key, Offset: paged.Offset, Bytes: paged.Bytes,
			Digest: digest, Sequence: paged.Sequence, Tag: NamespaceTag(&identity, paged.Epoch, paged.PageBytes),
		},
		"drop":           {Kind: KindDrop, Offset: paged.Offset},
		"namespace":      {Kind: KindNamespace, Namespace: 0xB1B2B3B4, Key: identity, Offset: paged.Epoch, Bytes: paged.PageBytes},
		"drop namespace": {Kind: KindDropNamespace, Namespace: 0xB1B2B3B4},
	}
	made := map[string][]byte{
		"superblock": make([]byte, SuperblockBytes), "log header": make([]byte, LogHeaderBytes), "page header": make([]byte, PageHeaderBytes),
	}
	super.Encode(made["superblock"])
	header.Encode(made["log header"])
	paged.Encode(made["page header"])
	for name, r := range records {
		r.Generation, r.Number = header.Generation, 0xC1C2C3C4C5C6C7C8
		made["record "+name] = make([]byte, RecordBytes)
		r.Encode(made["record "+name])
	}
	return made
}

// again decodes bytes and encodes what they say, by the name of a sample.
func again(name string, b []byte) ([]byte, error) {
	switch {
	case name == "superblock":
		s, err := DecodeSuperblock(b)
		made := make([]byte, SuperblockBytes)
		s.Encode(made)
		return made, err
	case name == "log header":
		h, err := DecodeLogHeader(b)
		made := make([]byte, LogHeaderBytes)
		h.Encode(made)
		return made, err
	case name == "page header":
		h, err := DecodePageHeader(b)
		made := make([]byte, PageHeaderBytes)
		h.Encode(made)
		return made, err
	}
	var r Record
	err := r.Decode(b)
	made := make([]byte, RecordBytes)
	r.Encode(made)
	return made, err
}

// TestGoldenBytes holds the bytes of each structure to those that volumes in service have.
func TestGoldenBytes(t *testing.T) {
	var text strings.Builder
	made := samples()
	for _, name := range slices.Sorted(maps.Keys(made)) {
		fmt.Fprintf(&text, "%s, %d bytes\n", name, len(made[name]))
		for at := 0; at < len(made[name]); at += 16 {
			if line := made[name][at:][:16]; !zero(line) {
				fmt.Fprintf(&text, "  %04x  %s\n", at, hex.EncodeToString(line))
			}
		}
	}
	if *update {
		if err := os.WriteFile(goldenFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Fatalf("the bytes changed, which needs another version:\n%s\nwant\n%s", text.String(), want)
	}
}

func TestEncodingLeavesNothingOfWhatWasThere(t *testing.T) {
	for name, b := range samples() {
		dirty := bytes.Repeat([]byte{0xEE}, len(b)+8)
		copy(dirty, b)
		made, err := again(name, dirty)
		if err != nil || !bytes.Equal(made, b) {
			t.Errorf("%s comes back as %x (%v)", name, made, err)
		}
	}
	r := Record{Kind: KindDrop, Offset: Granule}
	clean, dirty := make([]byte, RecordBytes), bytes.Repeat([]byte{0xEE}, RecordBytes)
	r.Encode(clean)
	r.Encode(dirty)
	if !bytes.Equal(clean, dirty) {
		t.Errorf("a record over other bytes is %x", dirty)
	}
}

// TestEveryTurnedBitAndEveryCutIsRefused needs the checksum alone: nothing that rotted is taken for what it was.
func TestEveryTurnedBitAndEveryCutIsRefused(t *testing.T) {
	for name, b := range samples() {
		for bit := range len(b) * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			if _, err := again(name, b); err == nil {
				t.Fatalf("%s with bit %d turned is taken", name, bit)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		for cut := range len(b) {
			if _, err := again(name, b[:cut]); !errors.Is(err, ErrShort) {
				t.Fatalf("%s of %d bytes: %v", name, cut, err)
			}
		}
		if _, err := again(name, make([]byte, len(b))); !errors.Is(err, ErrForeign) {
			t.Fatalf("%s of zeros: %v", name, err)
		}
	}
}

func TestFits(t *testing.T) {
	const payload = 1 << 20
	for _, c := range []struct {
		offset, bytes, payload uint64
		want                   bool
	}{
		{ScratchBytes, Granule, payload, true},
		{ScratchBytes, payload - ScratchBytes - PageHeaderBytes, payload, true},
		{ScratchBytes, payload - ScratchBytes, payload, false},
		{payload - Granule - PageHeaderBytes, Granule, payload, true},
		{payload - PageHeaderBytes, Granule, payload, false},
		{payload, Granule, payload, false},
		{0, Granule, payload, false},
		{ScratchBytes - Granule, Granule, payload, false},
		{ScratchBytes + 512, Granule, payload, false},
		{ScratchBytes, Granule + 512, payload, false},
		{ScratchBytes, 0, payload, false},
		{ScratchBytes, math.MaxUint64 - Granule + 1, payload, false},
		{math.MaxUint64 - Granule + 1, Granule, payload, false},
		{math.MaxUint64 - Granule + 1, 2 * Granule, math.MaxUint64, false},
		{ScratchBytes, Granule, 0, false},
		{ScratchBytes, Granule, PageHeaderBytes, false},
	} {
		if got := Fits(c.offset, c.bytes, c.payload); got != c.want {
			t.Errorf("%d bytes at %d of a payload of %d fit: %v", c.bytes, c.offset, c.payload, got)
		}
	}
}

func FuzzSuperblock(f *testing.F) { fuzz(f, "superblock", "superblock") }
func FuzzLogHeader(f *testing.F)  { fuzz(f, "log header", "log header") }
func FuzzPageHeader(f *testing.F) { fuzz(f, "page header", "page header") }

func FuzzRecord(f *testing.F) {
	fuzz(f, "record", "record put", "record drop", "record namespace", "record drop namespace")
}

// fuzz decodes bytes as they come, and once more with the checksum that they should have, so that what lies behind it is reached. What is taken must
// encode to the very bytes that it came from.
func fuzz(f *testing.F, name string, seeds ...string) {
	f.Helper()
	made := samples()
	size := len(made[seeds[0]])
	for _, seed := range seeds {
		f.Add(made[seed])
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytes.Clone(input)
		for range 2 {
			if back, err := again(name, b); err == nil && !bytes.Equal(back, b[:size]) {
				t.Fatalf("%x was taken for %x", b[:size], back)
			}
			if len(b) < size {
				return
			}
			seal(b[:size])
		}
	})
}
