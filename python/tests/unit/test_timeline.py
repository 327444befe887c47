"""Timeline records: one parsable line a stage, once, and nothing at all when they are off."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from orbitkv import timeline
from orbitkv.timeline import Stage, Timeline, parse


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timeline of this process have been made before."""
    monkeypatch.setattr(timeline, "_told", set())


def test_a_record_is_one_line_that_parses(timeline_lines: list[str]) -> None:
    Timeline("vllm", enabled=True).record(Stage.LAYER_READY, "req-1", layer=3)
    assert len(timeline_lines) == 2
    record = parse("INFO 12:00 " + timeline_lines[1])
    assert record is not None
    assert (record["stage"], record["request_id"], record["engine"], record["layer"]) == (
        "layer_ready",
        "req-1",
        "vllm",
        3,
    )
    assert isinstance(record["monotonic_ns"], int)
    assert parse("another line") is None


def test_a_process_says_once_which_clock_it_reads(timeline_lines: list[str]) -> None:
    for engine in ("scheduler", "worker"):
        Timeline(engine, enabled=True)
    (line,) = timeline_lines
    record = parse(line)
    assert record is not None
    assert (record["stage"], record["engine"], record["pid"]) == ("process", "scheduler", os.getpid())
    assert record["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert record["time_namespace"] == str(Path("/proc/self/ns/time").stat().st_ino)
    assert "request_id" not in record


def test_an_engine_whose_logging_takes_everything_has_each_record_once(
    timeline_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    everything = logging.Handler()
    monkeypatch.setattr(everything, "emit", lambda record: taken.append(record.getMessage()))
    root = logging.getLogger()
    root.addHandler(everything)
    try:
        Timeline("sglang", enabled=True).record(Stage.QUEUED, "req-1")
        logging.getLogger("another").warning("of another program")
    finally:
        root.removeHandler(everything)
    assert len(timeline_lines) == 2
    assert taken == ["of another program"]


def test_nothing_is_written_unless_it_is_switched_on(
    timeline_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORBITKV_TRACE_TRANSFERS", raising=False)
    Timeline("vllm").record(Stage.QUEUED, "req-1")
    assert timeline_lines == []
    monkeypatch.setenv("ORBITKV_TRACE_TRANSFERS", "1")
    Timeline("vllm").record(Stage.QUEUED, "req-1")
    assert len(timeline_lines) == 2
