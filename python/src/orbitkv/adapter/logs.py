"""The name under which the adapters log. Each line says itself whose it is: engines show a line's file at most."""

from __future__ import annotations

import logging

LOGGER = "orbitkv.adapter"
OWNER = "OrbitKV"


def name_owner(record: logging.LogRecord) -> bool:
    """Put the product's name before a message that does not begin with it; a filter that keeps every record."""
    if not str(record.msg).startswith(OWNER):
        record.msg = f"{OWNER}: {record.msg}"
    return True


def show_below(engine_logger: str) -> None:
    """Show the adapter's lines where an engine shows its own, for an engine whose handlers know its own names alone."""
    logging.getLogger(LOGGER).parent = logging.getLogger(engine_logger)


logging.getLogger(LOGGER).addFilter(name_owner)
