// Package schema is the one table of the channel between engines and the Cache Manager (ABI 5).
//
// The generator in internal/wire/gen reads it and writes the Go codec (internal/wire), the Python codec
// (python/src/orbitkv/_wire.py), the tables of docs/format/wire.md and the golden frames that both codecs decode
// in their tests. It owns no state and imports nothing of the module.
package schema

// ABI is the version that hello carries. Any other version is refused with both numbers named.
const ABI = 5

// Sizes of the channel, in bytes unless the name says otherwise.
const (
	HeaderBytes      = 16       // length u32, type u16, flags u16 (zero), id u64; little endian
	FrameBytesMax    = 64 << 10 // a whole frame, header included
	KeyBytes         = 32       // one chained block hash of the engine
	OperationKeysMax = 65536    // keys of one operation, over all its parts
	FrameKeysMax     = 1984     // keys of one part: a part with the longest strings still fits a frame
	FrameRunsMax     = 3968     // runs of one result or reserved part
	FrameRangesMax   = 7936     // ranges of one restored, committed or abandoned frame
	FrameGrantsMax   = 1984     // grant records of one reserved part
	FrameIDsMax      = 3968     // leases, or reservations, of one resume or resumed
	PartsMax         = 1024     // parts of one operation or answer
	StringBytesMax   = 512      // any string but an error text and facts
	TextBytesMax     = 4096     // error and remedy texts
	FactsBytesMax    = 32 << 10 // the JSON object of namespace facts
	RanksMax         = 64       // ranks of one instance
	AllRanks         = 0xFFFF   // rank value that stands for every rank of the instance
	LocationArenaBit = 48       // a location is arena<<48 | byte offset in that arena
)

// Kind says how a field is laid out on the wire.
type Kind string

// The field kinds. Counts and lengths come first, little endian; arrays are a u32 count and then fixed records.
const (
	U8     Kind = "u8"
	Bool   Kind = "bool" // u8, 0 or 1
	U16    Kind = "u16"
	I16    Kind = "i16"
	U32    Kind = "u32"
	U64    Kind = "u64"
	Bytes  Kind = "bytes16" // 16 raw bytes: incarnations and session tokens
	String Kind = "string"  // u16 length, UTF-8
	Text   Kind = "text"    // u16 length, UTF-8, at most TextBytesMax
	Facts  Kind = "facts"   // u32 length, a JSON object of string to string
	Keys   Kind = "keys"    // u32 count, 32 bytes each
	IDs    Kind = "ids"     // u32 count, u64 each
	Sizes  Kind = "sizes"   // u32 count, u64 each: bytes
	Runs   Kind = "runs"    // u32 count, records {part u16, zero u16, count u32, first u64 location}
	Ranges Kind = "ranges"  // u32 count, records {first u32, count u32}: ordinals of pages
	Grants Kind = "grants"  // u32 count, records {grant u8, zero u8, zero u16, count u32}
	Slices Kind = "slices"  // u32 count, records {rank u16, part u16, zero u32, offset u64, bytes u64}
)

// The kinds whose value is one of an Enum: the width, then the name of the Enum.
const (
	RoleOf    Kind = "u8 Role"
	WriterOf  Kind = "u8 Writer"
	OutcomeOf Kind = "u8 Outcome"
	TopicOf   Kind = "u8 Topic"
	StatusOf  Kind = "u16 Status"
	HintOf    Kind = "u8 Hint"
)

// Field is one field of a message, in wire order.
type Field struct {
	Name string // snake_case; the Go name is its CamelCase form
	Kind Kind
	Doc  string
}

// Sender says which end may send a message.
type Sender string

// The two ends of the channel.
const (
	Client  Sender = "client"
	Manager Sender = "manager"
	Both    Sender = "both"
)

// Message is one frame type.
type Message struct {
	Type   uint16
	Name   string // snake_case; the Go and Python type names are its CamelCase form
	Sender Sender
	Reply  string // names of the replies, "none" for a one-way frame (its id is zero)
	Doc    string
	Fields []Field
}

// Value is one named number of an enumeration.
type Value struct {
	Name  string
	Value int
	Doc   string
}

// Enum is a closed set of numbers that a field may hold.
type Enum struct {
	Name   string // CamelCase
	Doc    string
	Values []Value
}
