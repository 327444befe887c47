"""SGLang's hash of pages is compiled before the engine serves."""

from __future__ import annotations

from typing import Any

from harness import sglang_modules  # noqa: F401

# isort: split
import pytest

from orbitkv.errors import ConfigurationError
from orbitkv.sglang import engine


def test_a_page_hash_that_cannot_be_compiled_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang compiles it in the first look-up, where the same fault would end a serving engine."""

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to load HiCache native hash extension") from OSError("no compiler")

    engine.prepare_hash()
    monkeypatch.setattr(engine, "get_hash_str", fails)
    with pytest.raises(ConfigurationError, match=r"page hash cannot be compiled .*no compiler.*install g\+\+"):
        engine.prepare_hash()
