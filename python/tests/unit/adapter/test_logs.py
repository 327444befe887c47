"""A reader of vLLM's log sees which lines are of OrbitKV."""

from __future__ import annotations

import logging

import pytest

from orbitkv.adapter.logs import LOGGERS, show_below


@pytest.mark.parametrize("name", LOGGERS)
def test_each_line_names_its_owner_once(caplog: pytest.LogCaptureFixture, name: str) -> None:
    log = logging.getLogger(name)
    with caplog.at_level(logging.INFO, name):
        log.info("instance %s: %d bytes a page", "a", 4096)
        log.warning("OrbitKV gives this engine no external hits: %s", "sliding window")
    assert caplog.messages == [
        "OrbitKV: instance a: 4096 bytes a page",
        "OrbitKV gives this engine no external hits: sliding window",
    ]


def test_lines_of_the_copies_are_shown_where_the_engine_shows_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LOGGERS:
        log = logging.getLogger(name)
        monkeypatch.setattr(log, "parent", log.parent)
    engine = logging.getLogger("an-engine")
    monkeypatch.setattr(engine, "propagate", False)
    show_below("an-engine")
    engine.addHandler(caplog.handler)
    try:
        for name in LOGGERS:
            logging.getLogger(name).warning("by %s", name)
    finally:
        engine.removeHandler(caplog.handler)
    assert caplog.messages == [f"OrbitKV: by {name}" for name in LOGGERS]
