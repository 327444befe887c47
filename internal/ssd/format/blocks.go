package format

// The magic numbers of the blocks.
const (
	superblockMagic = "ORBKVSSD"
	logMagic        = "ORBKVLOG"
	pageMagic       = "ORBKVPAG"
)

// Superblock says whose a folder is, how its files are laid out, and what was cleared. It is written anew, whole or not at all, when one of these
// changes.
type Superblock struct {
	Volume       [16]byte // random, names the volume
	PayloadBytes uint64   // size of the payload file
	Cleared      uint64   // the highest sequence that had been given out when the volume was cleared last; no page up to it exists
}

const (
	superVolumeAt     = 16
	superPayloadAt    = 32
	superGranuleAt    = 40
	superScratchAt    = 44
	superRecordAt     = 48
	superLogHeaderAt  = 52
	superPageHeaderAt = 56
	superZeroAt       = 60
	superClearedAt    = 64
	superRestAt       = 72
)

// Encode writes the superblock into the first SuperblockBytes of b.
func (s *Superblock) Encode(b []byte) {
	b = b[:SuperblockBytes]
	beginBlock(b, superblockMagic)
	copy(b[superVolumeAt:], s.Volume[:])
	little.PutUint64(b[superPayloadAt:], s.PayloadBytes)
	little.PutUint32(b[superGranuleAt:], Granule)
	little.PutUint32(b[superScratchAt:], ScratchBytes)
	little.PutUint32(b[superRecordAt:], RecordBytes)
	little.PutUint32(b[superLogHeaderAt:], LogHeaderBytes)
	little.PutUint32(b[superPageHeaderAt:], PageHeaderBytes)
	little.PutUint64(b[superClearedAt:], s.Cleared)
	seal(b)
}

// DecodeSuperblock reads a superblock from the first SuperblockBytes of b.
func DecodeSuperblock(b []byte) (s Superblock, err error) {
	b, err = openBlock(b, superblockMagic, SuperblockBytes)
	if err != nil {
		return Superblock{}, err
	}
	layout := little.Uint32(b[superGranuleAt:]) == Granule && little.Uint32(b[superScratchAt:]) == ScratchBytes &&
		little.Uint32(b[superRecordAt:]) == RecordBytes && little.Uint32(b[superLogHeaderAt:]) == LogHeaderBytes &&
		little.Uint32(b[superPageHeaderAt:]) == PageHeaderBytes
	copy(s.Volume[:], b[superVolumeAt:])
	s.PayloadBytes = little.Uint64(b[superPayloadAt:])
	s.Cleared = little.Uint64(b[superClearedAt:])
	if !layout || s.Volume == [16]byte{} || s.PayloadBytes%Granule != 0 || !zero(b[superZeroAt:superClearedAt]) ||
		!zero(b[superRestAt:SuperblockBytes-sumBytes]) {
		return Superblock{}, ErrMalformed
	}
	return s, nil
}

// LogHeader is the first block of an index log.
type LogHeader struct {
	Volume     [16]byte
	Generation uint64 // random, names the log: each of its records bears it
	Snapshot   uint64 // records that were written with the header, before the log took its name
	Sequence   uint64 // the highest sequence that was given out when the log was made
}

const (
	logVolumeAt     = 16
	logGenerationAt = 32
	logSnapshotAt   = 40
	logSequenceAt   = 48
	logRestAt       = 56
)

// Encode writes the header into the first LogHeaderBytes of b.
func (h *LogHeader) Encode(b []byte) {
	b = b[:LogHeaderBytes]
	beginBlock(b, logMagic)
	copy(b[logVolumeAt:], h.Volume[:])
	little.PutUint64(b[logGenerationAt:], h.Generation)
	little.PutUint64(b[logSnapshotAt:], h.Snapshot)
	little.PutUint64(b[logSequenceAt:], h.Sequence)
	seal(b)
}

// DecodeLogHeader reads the header of an index log from the first LogHeaderBytes of b.
func DecodeLogHeader(b []byte) (h LogHeader, err error) {
	b, err = openBlock(b, logMagic, LogHeaderBytes)
	if err != nil {
		return LogHeader{}, err
	}
	copy(h.Volume[:], b[logVolumeAt:])
	h.Generation = little.Uint64(b[logGenerationAt:])
	h.Snapshot = little.Uint64(b[logSnapshotAt:])
	h.Sequence = little.Uint64(b[logSequenceAt:])
	if h.Generation == 0 || !zero(b[logRestAt:LogHeaderBytes-sumBytes]) {
		return LogHeader{}, ErrMalformed
	}
	return h, nil
}

// PageHeader stands directly behind a page in the payload file and says all that its index record and its namespace's record say. Only a repair of
// the index reads it.
type PageHeader struct {
	Volume    [16]byte
	Identity  [32]byte // of the namespace
	Epoch     uint64   // of the namespace
	PageBytes uint64   // of the namespace
	Key       [32]byte
	Group     uint16
	Offset    uint64 // of the page in the payload file, bytes: a block that lies elsewhere is no header
	Bytes     uint64 // of the page
	Digest    [16]byte
	Sequence  uint64
}

const (
	pageVolumeAt    = 16
	pageIdentityAt  = 32
	pageEpochAt     = 64
	pagePageBytesAt = 72
	pageKeyAt       = 80
	pageOffsetAt    = 112
	pageBytesAt     = 120
	pageDigestAt    = 128
	pageSequenceAt  = 144
	pageGroupAt     = 152
	pageRestAt      = 154
)

// Encode writes the header block into the first PageHeaderBytes of b.
func (h *PageHeader) Encode(b []byte) {
	b = b[:PageHeaderBytes]
	beginBlock(b, pageMagic)
	copy(b[pageVolumeAt:], h.Volume[:])
	copy(b[pageIdentityAt:], h.Identity[:])
	little.PutUint64(b[pageEpochAt:], h.Epoch)
	little.PutUint64(b[pagePageBytesAt:], h.PageBytes)
	copy(b[pageKeyAt:], h.Key[:])
	little.PutUint64(b[pageOffsetAt:], h.Offset)
	little.PutUint64(b[pageBytesAt:], h.Bytes)
	copy(b[pageDigestAt:], h.Digest[:])
	little.PutUint64(b[pageSequenceAt:], h.Sequence)
	little.PutUint16(b[pageGroupAt:], h.Group)
	seal(b)
}

// DecodePageHeader reads a header block from the first PageHeaderBytes of b. Whether the block lies where it says is for the caller to compare.
func DecodePageHeader(b []byte) (h PageHeader, err error) {
	b, err = openBlock(b, pageMagic, PageHeaderBytes)
	if err != nil {
		return PageHeader{}, err
	}
	copy(h.Volume[:], b[pageVolumeAt:])
	copy(h.Identity[:], b[pageIdentityAt:])
	h.Epoch = little.Uint64(b[pageEpochAt:])
	h.PageBytes = little.Uint64(b[pagePageBytesAt:])
	copy(h.Key[:], b[pageKeyAt:])
	h.Offset = little.Uint64(b[pageOffsetAt:])
	h.Bytes = little.Uint64(b[pageBytesAt:])
	copy(h.Digest[:], b[pageDigestAt:])
	h.Sequence = little.Uint64(b[pageSequenceAt:])
	h.Group = little.Uint16(b[pageGroupAt:])
	if !zero(b[pageRestAt : PageHeaderBytes-sumBytes]) {
		return PageHeader{}, ErrMalformed
	}
	return h, nil
}
