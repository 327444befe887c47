package vfs

import "unsafe"

// AlignedBuffer returns memory whose address is a multiple of Align, for direct reads and writes of whoever has no mapping for them.
func AlignedBuffer(bytes int) []byte {
	memory := make([]byte, bytes+Align)
	skip := int(-address(memory) & (Align - 1))
	return memory[skip:][:bytes:bytes]
}

// Aligned says whether a direct read or write at this offset may use these buffers.
func Aligned(buffers [][]byte, offset int64) bool {
	if offset%Align != 0 {
		return false
	}
	for _, b := range buffers {
		if len(b)%Align != 0 || len(b) > 0 && address(b)%Align != 0 {
			return false
		}
	}
	return true
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
