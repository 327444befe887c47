module orbitkv

go 1.26

require (
	github.com/tidwall/btree v1.8.1
	pgregory.net/rapid v1.3.0
)
