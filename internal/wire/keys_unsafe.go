package wire

import "unsafe"

// KeysOf views raw bytes as keys without a copy; a rest that is shorter than a key is left out. A Key is an array of bytes, so any
// address is aligned for it.
func KeysOf(raw []byte) []Key {
	return unsafe.Slice((*Key)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)/KeyBytes)
}

// KeyBytesOf views keys as their raw bytes without a copy.
func KeyBytesOf(keys []Key) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(keys))), len(keys)*KeyBytes)
}
