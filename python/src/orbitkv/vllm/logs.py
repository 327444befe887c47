"""The name under which the adapter logs: vLLM's own handlers show what is below its name, and nothing else.

They show a line's file and not its logger, so that each line of the adapter says itself whose it is.
"""

from __future__ import annotations

import logging

LOGGER = "vllm.orbitkv"
OWNER = "OrbitKV"


def name_owner(record: logging.LogRecord) -> bool:
    """Put the product's name before a message that does not begin with it; a filter that keeps every record."""
    if not str(record.msg).startswith(OWNER):
        record.msg = f"{OWNER}: {record.msg}"
    return True


logging.getLogger(LOGGER).addFilter(name_owner)
