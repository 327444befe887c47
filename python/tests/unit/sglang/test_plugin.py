"""The entry point and the probe of SGLang's names, against a stand-in of SGLang that has only what is asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from orbitkv.errors import ConfigurationError
from orbitkv.sglang import plugin, probe


class Release:
    """Modules `sglang...` made from the probe's own list, each attribute as an empty class."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.factories: dict[str, Callable[[Any], Any]] = {}
        for symbol in probe.SYMBOLS:
            self.add(symbol)
        self.module("sglang").__version__ = "0.5.20"
        registry = self.module("sglang.srt.mem_cache.registry")
        registry.get_radix_cache_factory = self.factories.get
        registry.register_radix_cache_backend = self.factories.__setitem__
        self.linker.__abstractmethods__ = probe.LINKER_METHODS

    @property
    def linker(self) -> Any:
        return self.module(probe.LINKER).UnifiedCacheLinker

    def module(self, name: str) -> Any:
        for at in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:at])
            if part not in self.modules:
                self.modules[part] = ModuleType(part)
                self.modules[part].__path__ = []
        return self.modules[name]

    def add(self, symbol: str) -> None:
        name, _, path = symbol.partition(":")
        at = self.module(name)
        for attribute in path.split("."):
            if not hasattr(at, attribute):
                setattr(at, attribute, type(attribute, (), {}))
            at = getattr(at, attribute)

    def take(self, symbol: str) -> None:
        name, _, path = symbol.partition(":")
        *outer, last = path.split(".")
        at = self.module(name)
        for attribute in outer:
            at = getattr(at, attribute)
        delattr(at, last)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    made = Release()
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_the_backend_is_registered_once(release: Release) -> None:
    plugin.register()
    plugin.register()
    assert release.factories == {"orbitkv": plugin.create}


def test_registering_leaves_everything_else_as_it_was(release: Release) -> None:
    before = {name: dict(vars(module)) for name, module in release.modules.items()}
    plugin.register()
    assert {name: dict(vars(module)) for name, module in release.modules.items()} == before
    assert "orbitkv.sglang.backend" not in sys.modules


def test_a_release_with_every_name_passes(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        probe.check_symbols()
    assert not caplog.records


@pytest.mark.parametrize("symbol", probe.SYMBOLS)
def test_a_name_that_a_release_lacks_is_named(release: Release, symbol: str) -> None:
    release.take(symbol)
    with pytest.raises(ConfigurationError) as refused:
        plugin.create(None)
    assert symbol in str(refused.value)
    assert "0.5.20" in str(refused.value)


def test_a_linker_that_is_asked_for_more_is_refused(release: Release) -> None:
    release.linker.__abstractmethods__ = probe.LINKER_METHODS | {"finish_layer_wise_loading"}
    with pytest.raises(ConfigurationError, match="finish_layer_wise_loading"):
        probe.check_symbols()


def test_another_release_is_a_warning(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    release.module("sglang").__version__ = "0.5.21"
    with caplog.at_level(logging.WARNING):
        probe.check_symbols()
    assert "SGLang 0.5.21 was not tested" in caplog.text
