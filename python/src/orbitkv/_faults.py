"""What code that is not the package's own may raise inside one of its threads: callbacks, hooks and copies.

A thread that serves a whole client or backend outlives all of it. It is a list and not everything, so that an end of
the interpreter and what nobody expects still pass.
"""

from __future__ import annotations

from orbitkv.errors import OrbitKVError

FAULTS = (
    OrbitKVError,
    OSError,
    RuntimeError,
    MemoryError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
