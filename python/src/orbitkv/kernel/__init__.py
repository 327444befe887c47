"""What OrbitKV runs on the GPU itself: copies of small pieces, and digests of pages. Nothing else imports torch here.

Where a page's pieces are small, copy engines spend their time between pieces; a kernel that reads and writes mapped
host memory does not. `mover` makes the `kernel` backend of it, `verifier` checks restored pages. The other modules
plan (`geometry`), keep tables of pages (`tables`) and hold the kernels (`kernels`); only the last needs a device.

`orbitkv.transfer.make_backend` imports this package, and only when a backend needs it.
"""
