package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Header is the fixed start of every frame.
type Header struct {
	Bytes uint32 // the whole frame, header included
	Type  Type
	ID    uint64 // pairs a reply with its call; zero on one-way frames and pushes
}

// Message is one frame type: the generated structs implement it.
type Message interface {
	Type() Type
	// Append encodes a whole frame after dst. A field over its bound is an error and leaves dst as it was.
	Append(dst []byte, id uint64) ([]byte, error)
	// Decode reads the bytes after the header. The error is an *Error with StatusMalformed; fields are then undefined.
	Decode(body []byte) error
}

// Error implements error: the status by name and the text.
func (m *Error) Error() string { return m.Status.String() + ": " + m.Text }

// Errorf makes an Error whose text is cut to TextBytesMax.
func Errorf(status Status, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	if len(text) > TextBytesMax {
		text = text[:TextBytesMax]
	}
	return &Error{Status: status, Text: cleanUTF8(text)}
}

func malformed(format string, args ...any) *Error { return Errorf(StatusMalformed, format, args...) }

// ParseHeader checks the fixed part of a frame: its length within bounds, a type of this ABI, flags zero.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderBytes {
		return Header{}, malformed("a frame header has %d bytes, got %d", HeaderBytes, len(b))
	}
	h := Header{Bytes: binary.LittleEndian.Uint32(b), Type: Type(binary.LittleEndian.Uint16(b[4:])), ID: binary.LittleEndian.Uint64(b[8:])}
	if h.Bytes < HeaderBytes || h.Bytes > FrameBytesMax {
		return h, malformed("a frame of %d bytes is outside %d..%d", h.Bytes, HeaderBytes, FrameBytesMax)
	}
	if flags := binary.LittleEndian.Uint16(b[6:]); flags != 0 {
		return h, malformed("flags of frame type %d are %#x, must be zero", uint16(h.Type), flags)
	}
	if !h.Type.Valid() {
		return h, malformed("frame type %d is unknown to ABI %d", uint16(h.Type), ABI)
	}
	return h, nil
}

// Reader takes frames off a stream through one buffer of FrameBytesMax bytes, so a frame that arrived with others costs no
// system call of its own.
type Reader struct {
	source     io.Reader
	buf        []byte
	start, end int // unread bytes of buf
}

// NewReader reads frames from source.
func NewReader(source io.Reader) *Reader {
	return &Reader{source: source, buf: make([]byte, FrameBytesMax)}
}

// Next returns the next frame. The body is valid until the following call. The error is io.EOF between frames,
// io.ErrUnexpectedEOF inside one, an *Error for a malformed header, or the source's own.
func (r *Reader) Next() (Header, []byte, error) {
	if err := r.fill(HeaderBytes); err != nil {
		return Header{}, nil, err
	}
	h, err := ParseHeader(r.buf[r.start:r.end])
	if err != nil {
		return h, nil, err
	}
	if err := r.fill(int(h.Bytes)); err != nil {
		return h, nil, err
	}
	body := r.buf[r.start+HeaderBytes : r.start+int(h.Bytes)]
	r.start += int(h.Bytes)
	return h, body, nil
}

// fill makes at least n unread bytes available at start.
func (r *Reader) fill(n int) error {
	if r.end-r.start >= n {
		return nil
	}
	if r.start+n > len(r.buf) || r.start == r.end {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	got, err := io.ReadAtLeast(r.source, r.buf[r.end:], n-(r.end-r.start))
	inside := r.end > r.start || got > 0
	r.end += got
	if err == io.EOF && inside {
		return io.ErrUnexpectedEOF
	}
	return err
}

// HelloABI reads the ABI of a hello's body whatever the rest looks like: another ABI may lay the rest out in another way, and
// the refusal has to name both numbers.
func HelloABI(body []byte) (abi uint16, ok bool) {
	if len(body) < 2 {
		return 0, false
	}
	return binary.LittleEndian.Uint16(body), true
}
