"""The names under which an engine's process logs. Each line says itself whose it is: engines show its file at most."""

from __future__ import annotations

import logging

LOGGER = "orbitkv.adapter"
LOGGERS = (LOGGER, "orbitkv.transfer")  # with that of the copies, which knows no adapter
OWNER = "OrbitKV"


def name_owner(record: logging.LogRecord) -> bool:
    """Put the product's name before a message that does not begin with it; a filter that keeps every record."""
    if not str(record.msg).startswith(OWNER):
        record.msg = f"{OWNER}: {record.msg}"
    return True


def show_below(engine_logger: str) -> None:
    """Show these lines where an engine shows its own, for an engine whose handlers know its own names alone."""
    for name in LOGGERS:
        logging.getLogger(name).parent = logging.getLogger(engine_logger)


for _name in LOGGERS:
    logging.getLogger(_name).addFilter(name_owner)
