package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// scanBytes is how much of a payload file is read at once.
const scanBytes = 8 << 20

// Rebuild makes the index log of a volume anew from the header blocks in its payload file, in place of whatever log there is, and returns what the new
// one says. Nobody else may have the volume open. Of pages that overlap the one written last is taken, and of those under one key too; pages that were
// dropped and not yet written over come back, those from before the last clear do not. Digests are
// not compared: a reader does that anyway. progress is called with bytes of the payload. After an error the old log stands as it was.
func Rebuild(ctx context.Context, fs vfs.FS, payload vfs.File, volume [16]byte, limits Limits, progress func(done, total uint64)) (State, error) {
	header, err := lastHeader(fs, volume)
	if err != nil {
		return State{}, remedied(fs, err)
	}
	s := &scan{volume: volume, limits: limits, numbers: map[Namespace]uint32{}, state: State{Problems: map[string]uint64{}}}
	if err := s.run(ctx, payload, progress); err != nil {
		return State{}, fmt.Errorf("payload of %s: %w", fs.Name(), err)
	}
	s.settle()
	j := &Journal{fs: fs, volume: volume, cleared: limits.Cleared, namespaces: newTable(s.state.Namespaces)}
	j.sequence.Store(max(header.Sequence, s.sequence, limits.Cleared))
	if err := j.Compact(slices.Values(s.state.Puts)); err != nil {
		return State{}, err
	}
	s.state.Records, s.state.Bytes = j.Records(), j.Bytes()
	return s.state, j.Close()
}

// lastHeader is the header of the log that a rebuilt one takes the place of; one of zeros where it cannot be read.
func lastHeader(fs vfs.FS, volume [16]byte) (header format.LogHeader, err error) {
	exists, err := fs.Exists(format.IndexName)
	if err != nil || !exists {
		return format.LogHeader{}, err
	}
	file, err := fs.Open(format.IndexName, vfs.Buffered)
	if err != nil {
		return format.LogHeader{}, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	size, err := file.Size()
	if err != nil {
		return format.LogHeader{}, err
	}
	header, err = readHeader(file, size)
	switch {
	case errors.Is(err, format.ErrVersion):
		return format.LogHeader{}, err
	case err != nil:
		return format.LogHeader{}, nil
	case header.Volume != volume:
		return format.LogHeader{}, ErrOtherVolume
	}
	return header, nil
}

// scan gathers the pages of a payload file.
type scan struct {
	volume   [16]byte
	limits   Limits
	sequence uint64               // the highest seen
	numbers  map[Namespace]uint32 // by namespaces whose Number is zero
	state    State
}

func (s *scan) run(ctx context.Context, payload vfs.File, progress func(done, total uint64)) error {
	size, err := payload.Size()
	if err != nil {
		return err
	}
	total := min(uint64(size), s.limits.PayloadBytes) / format.Granule * format.Granule
	buffer := vfs.AlignedBuffer(scanBytes)
	for offset := uint64(format.ScratchBytes); offset < total; {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := buffer[:min(scanBytes, total-offset)]
		if payload.ReadAt([][]byte{chunk}, int64(offset)) == nil {
			s.blocks(chunk, offset)
		} else {
			s.singly(payload, chunk, offset)
		}
		offset += uint64(len(chunk))
		progress(offset, total)
	}
	return nil
}

// singly reads a chunk block by block, since one that cannot be read must not cost the others.
func (s *scan) singly(payload vfs.File, chunk []byte, offset uint64) {
	for at := 0; at < len(chunk); at += format.Granule {
		block := chunk[at:][:format.Granule]
		if payload.ReadAt([][]byte{block}, int64(offset)+int64(at)) != nil {
			s.state.Problems[Unreadable]++
			continue
		}
		s.blocks(block, offset+uint64(at))
	}
}

func (s *scan) blocks(chunk []byte, offset uint64) {
	for at := 0; at < len(chunk); at += format.Granule {
		h, err := format.DecodePageHeader(chunk[at:])
		switch {
		case err == nil:
			s.page(&h, offset+uint64(at))
		case !errors.Is(err, format.ErrForeign):
			s.state.Problems[Damaged]++
		}
	}
}

// page takes the page whose header block was found at an offset.
func (s *scan) page(h *format.PageHeader, found uint64) {
	switch {
	case h.Volume != s.volume || h.Sequence <= s.limits.Cleared:
		s.state.Problems[Stale]++
		return
	case !format.Fits(h.Offset, h.Bytes, s.limits.PayloadBytes) || h.Offset+h.Bytes != found:
		s.state.Problems[OutOfBounds]++
		return
	}
	s.sequence = max(s.sequence, h.Sequence)
	n := Namespace{Identity: h.Identity, Epoch: h.Epoch, PageBytes: h.PageBytes}
	number, known := s.numbers[n]
	if !known {
		number = uint32(len(s.numbers)) + 1
		s.numbers[n] = number
		n.Number = number
		s.state.Namespaces = append(s.state.Namespaces, n)
	}
	s.state.Puts = append(s.state.Puts, Put{
		Namespace: number, Group: h.Group, Key: h.Key, Offset: h.Offset, Bytes: h.Bytes, Digest: h.Digest, Sequence: h.Sequence,
	})
}

// settle leaves the pages that no later one took the space or the key of, the oldest first.
func (s *scan) settle() {
	slices.SortFunc(s.state.Puts, func(x, y Put) int { return cmp.Compare(x.Sequence, y.Sequence) })
	s.state.Puts = sound(s.state.Puts, s.state.Problems)
}
