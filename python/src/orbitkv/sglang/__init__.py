"""The SGLang adapter: the radix-cache backend `orbitkv`, which SGLang finds through the entry point `plugin.register`.

    plugin.py    registers the backend's name, and nothing else
    probe.py     the names of SGLang that the adapter needs: a release that lacks one is refused by that name
    backend.py   builds the cache when the backend is selected; only then is anything of SGLang wrapped
    engine.py    every question to SGLang's configuration: supported, place of the rank, facts of the bytes
    tensors.py   SGLang's KV pools: their layout by page
    device.py    the engine's streams, when its pool lies on a CUDA device
    metrics.py   the statistics as `sglang:orbitkv_*`
    cache.py     the engine's own radix cache, with what its ranks agree on in each scheduling pass
    linker.py    SGLang's linker: translates the engine's objects
    rank.py      one rank, which schedules with the others and copies its own slice
    loads.py     restores that the scheduler queued, started together
    offloads.py  publishes in the engine's order
    waits.py     how the scheduler's thread waits for copies to end
    proof.py     a rank's attachment, usable once a golden round trip went through its Cache Manager
    scratch.py   pages for that, in the kind of memory where the engine's lie

Only `backend.py`, `cache.py`, `linker.py`, `engine.py` and `tensors.py` import SGLang or torch with their module. The
rest is plain Python over small protocols, so that it is tested without an engine.
"""
