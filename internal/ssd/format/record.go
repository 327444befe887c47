package format

// Kind says what a record of an index log does.
type Kind uint8

// The kinds. Numbers are never given to another kind.
const (
	KindPut           Kind = 1 // a page is stored
	KindDrop          Kind = 2 // the page at an offset is stored no more, and its space may be written anew
	KindNamespace     Kind = 3 // from here on a number stands for a namespace
	KindDropNamespace Kind = 4 // the namespace and all its pages are forgotten
)

// Record is one record of an index log. A kind uses the fields that are said for it; the others are zero.
type Record struct {
	Kind       Kind
	Retained   bool     // put: the page is of the retained class
	Group      uint16   // put
	Namespace  uint32   // put, namespace, drop namespace: the volume's number of it
	Generation uint64   // all: that of the log
	Number     uint64   // all: how many records stand before this one in the log
	Key        [32]byte // put: the key; namespace: the identity
	Offset     uint64   // put, drop: of the page in the payload file; namespace: the epoch
	Bytes      uint64   // put: of the page; namespace: bytes of its pages
	Digest     [16]byte // put: XXH3-128 of the page
	Sequence   uint64   // put: order of writing over the whole life of the volume
	Tag        uint64   // put: NamespaceTag of the namespace that the number stands for
}

// NamespaceTag tells namespaces apart that were given the same number one after the other: a page whose namespace's record was lost does not
// fall to the namespace that had the number before.
func NamespaceTag(identity *[32]byte, epoch, pageBytes uint64) uint64 {
	tag := epoch ^ pageBytes
	for at := 0; at < len(identity); at += 8 {
		tag ^= little.Uint64(identity[at:])
	}
	return tag
}

const (
	recordMagic = 0x4B52 // "RK"

	recordVersionAt    = 2
	recordKindAt       = 3
	recordFlagsAt      = 4
	recordZeroAt       = 5
	recordGroupAt      = 6
	recordNamespaceAt  = 8
	recordZero2At      = 12
	recordGenerationAt = 16
	recordNumberAt     = 24
	recordKeyAt        = 32
	recordOffsetAt     = 64
	recordBytesAt      = 72
	recordDigestAt     = 80
	recordSequenceAt   = 96
	recordTagAt        = 104
	recordRestAt       = 112

	flagRetained = 1
)

// Encode writes the record into the first RecordBytes of b.
func (r *Record) Encode(b []byte) {
	b = b[:RecordBytes]
	clear(b)
	little.PutUint16(b, recordMagic)
	b[recordVersionAt] = Version
	b[recordKindAt] = uint8(r.Kind)
	if r.Retained {
		b[recordFlagsAt] = flagRetained
	}
	little.PutUint16(b[recordGroupAt:], r.Group)
	little.PutUint32(b[recordNamespaceAt:], r.Namespace)
	little.PutUint64(b[recordGenerationAt:], r.Generation)
	little.PutUint64(b[recordNumberAt:], r.Number)
	copy(b[recordKeyAt:], r.Key[:])
	little.PutUint64(b[recordOffsetAt:], r.Offset)
	little.PutUint64(b[recordBytesAt:], r.Bytes)
	copy(b[recordDigestAt:], r.Digest[:])
	little.PutUint64(b[recordSequenceAt:], r.Sequence)
	little.PutUint64(b[recordTagAt:], r.Tag)
	seal(b)
}

// Decode reads a record from the first RecordBytes of b. After an error the record holds nothing of use.
func (r *Record) Decode(b []byte) error {
	switch {
	case len(b) < RecordBytes:
		return ErrShort
	case little.Uint16(b) != recordMagic:
		return ErrForeign
	case !sealed(b[:RecordBytes]):
		return ErrChecksum
	case b[recordVersionAt] != Version:
		return ErrVersion
	}
	b = b[:RecordBytes]
	r.Kind = Kind(b[recordKindAt])
	r.Retained = b[recordFlagsAt] == flagRetained
	r.Group = little.Uint16(b[recordGroupAt:])
	r.Namespace = little.Uint32(b[recordNamespaceAt:])
	r.Generation = little.Uint64(b[recordGenerationAt:])
	r.Number = little.Uint64(b[recordNumberAt:])
	copy(r.Key[:], b[recordKeyAt:])
	r.Offset = little.Uint64(b[recordOffsetAt:])
	r.Bytes = little.Uint64(b[recordBytesAt:])
	copy(r.Digest[:], b[recordDigestAt:])
	r.Sequence = little.Uint64(b[recordSequenceAt:])
	r.Tag = little.Uint64(b[recordTagAt:])
	if b[recordFlagsAt] > flagRetained || b[recordZeroAt] != 0 || !zero(b[recordZero2At:recordGenerationAt]) ||
		!zero(b[recordRestAt:RecordBytes-sumBytes]) || !r.plain() {
		return ErrMalformed
	}
	return nil
}

// plain says whether the kind is known and the fields that it does not use are zero.
func (r *Record) plain() bool {
	bare := Record{Kind: r.Kind, Generation: r.Generation, Number: r.Number}
	switch r.Kind {
	case KindPut:
		return true
	case KindDrop:
		bare.Offset = r.Offset
	case KindNamespace:
		bare.Namespace, bare.Key, bare.Offset, bare.Bytes = r.Namespace, r.Key, r.Offset, r.Bytes
	case KindDropNamespace:
		bare.Namespace = r.Namespace
	default:
		return false
	}
	return *r == bare
}
