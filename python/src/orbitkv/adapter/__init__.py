"""What the adapters of all engines share: one connector core over the client, without any engine in it.

    link.py        a thread that keeps a session: connects, looks after it, connects anew
    session.py     the session that schedules: namespace, epoch, take-over after a lost channel
    attachment.py  the session that copies: arenas, backend, reports of what ended
    lookup.py      queries of waiting requests: what may be promised, and for how long
    copies.py      plans of restores and publishes, submitted and reported
    publishing.py  reserves of batches, from the question to the end of the last copy, and their bounds
    golden.py      proof that bytes come back as they went, on the engine's own tensors
    tensors.py     the engine's tensors: layout for the copies, single pages for the golden round trip
    facts.py       facts of a model that name its bytes

An adapter decides with its engine's scheduler what is copied and when the engine's pages are free again; it imports
this package, never the other way round, and no adapter imports another.
"""
