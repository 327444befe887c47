// Package format is the bytes of everything that a volume of the SSD tier keeps on disk: the superblock, the header and the records of the
// index log, and the header block behind each page. docs/format/ssd.md draws them; a test holds the page and this package to each other.
//
// Encoding writes into memory of the caller and cannot fail. Decoding takes any bytes at all: what it does not know is one of the errors below,
// and it neither panics nor allocates. All numbers are little endian, and every checksum is CRC32C over the bytes before it.
//
// Concurrency: there is no state. The package does no I/O and imports nothing of the module.
package format

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// The sizes of a volume, in bytes.
const (
	Granule         = 4 << 10     // unit of every offset and length in the payload file
	ScratchBytes    = 2 * Granule // front of the payload file that holds no page: the probe of the I/O engine writes there
	SuperblockBytes = 4 << 10
	LogHeaderBytes  = 4 << 10 // the first record of an index log lies behind them
	RecordBytes     = 128
	PageHeaderBytes = 4 << 10
)

// Version is the only version of all four structures that this package writes and reads.
const Version = 2

// The names of a volume's files.
const (
	SuperblockName = "superblock"
	PayloadName    = "payload"
	IndexName      = "index"
	IndexNewName   = "index.new" // an index log that has not taken the place of the current one yet
)

// What decoding says of bytes that it does not take.
var (
	ErrShort     = errors.New("fewer bytes than the structure has")
	ErrForeign   = errors.New("the magic number is another one: not bytes of OrbitKV")
	ErrChecksum  = errors.New("the checksum does not match the bytes")
	ErrVersion   = errors.New("written by a version of OrbitKV that this one does not know")
	ErrMalformed = errors.New("a field has a value that this version never writes")
)

// ExtentBytes is what a page of so many bytes occupies in the payload file: its bytes and its header block.
func ExtentBytes(pageBytes uint64) uint64 { return pageBytes + PageHeaderBytes }

// Fits says whether a page at an offset lies whole in a payload file, outside of its scratch, on whole granules.
func Fits(offset, pageBytes, payloadBytes uint64) bool {
	if offset%Granule != 0 || offset < ScratchBytes || pageBytes == 0 || pageBytes%Granule != 0 {
		return false
	}
	return payloadBytes >= PageHeaderBytes && offset <= payloadBytes-PageHeaderBytes && pageBytes <= payloadBytes-PageHeaderBytes-offset
}

const sumBytes = 4

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	little     = binary.LittleEndian
)

// seal writes the checksum of b into its last bytes.
func seal(b []byte) {
	end := len(b) - sumBytes
	little.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
}

// sealed says whether the last bytes of b are the checksum of the others.
func sealed(b []byte) bool {
	end := len(b) - sumBytes
	return little.Uint32(b[end:]) == crc32.Checksum(b[:end], castagnoli)
}

// zero says whether bytes that no field uses are what every version leaves there.
func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// The blocks (everything but records) begin alike: eight bytes of magic, the version, the block's own size.
const (
	blockVersionAt = 8
	blockBytesAt   = 12
	blockBodyAt    = 16
)

// beginBlock clears a block's bytes and writes what every block begins with.
func beginBlock(b []byte, magic string) {
	clear(b)
	copy(b, magic)
	little.PutUint32(b[blockVersionAt:], Version)
	little.PutUint32(b[blockBytesAt:], uint32(len(b)))
}

// openBlock checks what every block begins and ends with. The magic number comes first, so that foreign bytes are told from damaged ones, and the
// checksum before the version, so that a damaged version is not taken for a newer one.
func openBlock(b []byte, magic string, bytes int) ([]byte, error) {
	switch {
	case len(b) < bytes:
		return nil, ErrShort
	case string(b[:blockVersionAt]) != magic:
		return nil, ErrForeign
	case !sealed(b[:bytes]):
		return nil, ErrChecksum
	case little.Uint32(b[blockVersionAt:]) != Version:
		return nil, ErrVersion
	case little.Uint32(b[blockBytesAt:]) != uint32(bytes):
		return nil, ErrMalformed
	}
	return b[:bytes], nil
}
