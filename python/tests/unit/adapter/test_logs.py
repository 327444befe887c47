"""A reader of vLLM's log sees which lines are of OrbitKV."""

from __future__ import annotations

import logging

import pytest

from orbitkv.adapter.logs import LOGGER


def test_each_line_of_the_adapter_names_its_owner_once(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(LOGGER)
    with caplog.at_level(logging.INFO, LOGGER):
        log.info("instance %s: %d bytes a page", "a", 4096)
        log.warning("OrbitKV gives this engine no external hits: %s", "sliding window")
    assert caplog.messages == [
        "OrbitKV: instance a: 4096 bytes a page",
        "OrbitKV gives this engine no external hits: sliding window",
    ]
