package vfs

// trim returns buffers without their first n bytes, and without empty ones at the front. It changes none of its arguments.
func trim(buffers [][]byte, n int) [][]byte {
	for len(buffers) > 0 && n >= len(buffers[0]) {
		n -= len(buffers[0])
		buffers = buffers[1:]
	}
	if n == 0 {
		return buffers
	}
	rest := append([][]byte{buffers[0][n:]}, buffers[1:]...)
	return rest
}

func bytesOf(buffers [][]byte) (sum int) {
	for _, b := range buffers {
		sum += len(b)
	}
	return sum
}
