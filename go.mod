module orbitkv

go 1.26.0

require (
	github.com/tidwall/btree v1.8.1
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)
