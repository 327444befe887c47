module orbitkv

go 1.26
