"""Timeline records: one parsable line a stage, and nothing at all when they are off."""

from __future__ import annotations

import logging

import pytest

from orbitkv.timeline import Stage, Timeline, parse


def test_a_record_is_one_line_that_parses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orbitkv.timeline")
    Timeline("vllm", enabled=True).record(Stage.LAYER_READY, "req-1", layer=3)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    record = parse("INFO 12:00 " + lines[0])
    assert record is not None
    assert (record["stage"], record["request_id"], record["engine"], record["layer"]) == (
        "layer_ready",
        "req-1",
        "vllm",
        3,
    )
    assert isinstance(record["monotonic_ns"], int)
    assert parse("another line") is None


def test_nothing_is_written_unless_it_is_switched_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "orbitkv.timeline")
    monkeypatch.delenv("ORBITKV_TRACE_TRANSFERS", raising=False)
    Timeline("vllm").record(Stage.QUEUED, "req-1")
    assert caplog.records == []
    monkeypatch.setenv("ORBITKV_TRACE_TRANSFERS", "1")
    Timeline("vllm").record(Stage.QUEUED, "req-1")
    assert len(caplog.records) == 1
