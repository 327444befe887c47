package ssd

// queue is first in, first out. Its slice is used over again.
type queue[T any] struct {
	items []T
	first int
}

func (q *queue[T]) len() int { return len(q.items) - q.first }

// at is the ith item from the first on.
func (q *queue[T]) at(i int) T { return q.items[q.first+i] }

func (q *queue[T]) push(item T) {
	if q.first > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

// take removes the ith item.
func (q *queue[T]) take(i int) T {
	at := q.first + i
	item := q.items[at]
	copy(q.items[at:], q.items[at+1:])
	var none T
	q.items[len(q.items)-1] = none
	if q.items = q.items[:len(q.items)-1]; q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return item
}

func (q *queue[T]) pop() T {
	var none T
	item := q.items[q.first]
	q.items[q.first] = none
	if q.first++; q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return item
}
