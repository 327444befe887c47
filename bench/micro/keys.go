package micro

import (
	"encoding/binary"
	"math/rand/v2"

	"orbitkv/internal/wire"
)

// keysOf returns the keys of pages first to first+count-1: 32 bytes that look like a hash and follow from the number alone.
func keysOf(first, count int) []wire.Key {
	keys := make([]wire.Key, count)
	for i := range keys {
		source := rand.NewPCG(uint64(first+i), 0)
		for word := 0; word < len(keys[i]); word += 8 {
			binary.LittleEndian.PutUint64(keys[i][word:], source.Uint64())
		}
	}
	return keys
}

// shuffled returns the keys in another order, the same one in every run.
func shuffled(keys []wire.Key) []wire.Key {
	mixed := append([]wire.Key(nil), keys...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	return mixed
}
