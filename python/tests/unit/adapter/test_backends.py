"""The choice of a rank's backend: what it declares about its writes, and what it refuses."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.device import FakeDriver
from harness.fakes import FakeTensors
from orbitkv.adapter import backends
from orbitkv.adapter.backends import BackendChoice, may_share_device
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.tensors import TensorPages, device_of, layout_of
from orbitkv.errors import ConfigurationError
from orbitkv.transfer import DeviceSite

LAYERS, BLOCKS, BLOCK_BYTES = 2, 4, 4096


def test_host_memory_is_copied_by_the_processor_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
    with caplog.at_level(logging.INFO, "orbitkv.adapter"):
        choice = BackendChoice(read_settings({}, {}), tensors.layout)
    assert (choice.name, choice.writer) == ("host", "host")
    assert len(caplog.messages) == 1
    assert f"host backend, {LAYERS * BLOCK_BYTES} bytes a page" in caplog.messages[0]
    backend = choice.make()
    assert backend.name == "host"
    backend.close()


def test_arenas_are_registered_with_pauses_once_the_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a backend that was made before, which still registers when the start has waited long enough."""
    made: list[DeviceSite] = []
    tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
    monkeypatch.setattr(backends, "choose_backend", lambda *_: "direct")
    monkeypatch.setattr(backends, "make_backend", lambda *_, site, **__: made.append(site))
    with FakeDriver() as driver:
        site = DeviceSite(driver, lambda: 5, lambda: (5, 6), numa=1)
        assert site.serving(), "whoever has no start waits for nothing"
        choice = BackendChoice(read_settings({}, {}), tensors.layout, site)
        choice.make()
        assert not made[0].serving()
        choice.serve()
        choice.make()
    assert [each.serving() for each in made] == [True, True]
    assert (made[0].driver, made[0].current_stream(), made[0].fences(), made[0].numa) == (driver, 5, (5, 6), 1)


def test_nobody_checks_digests_of_host_memory() -> None:
    tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
    with pytest.raises(ConfigurationError, match=r"remove orbitkv\.verify"):
        BackendChoice(read_settings({"orbitkv.verify": "gpu"}, {}), tensors.layout)


@pytest.mark.parametrize("name", ["warp", "", "Host"])
def test_a_backend_that_does_not_exist_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(ConfigurationError, match="auto, host, direct, kernel"):
        read_settings({"orbitkv.transfer_backend": name}, {})


def test_a_daemon_that_may_share_the_device_is_seen(tmp_path: Path) -> None:
    absent, there = tmp_path / "absent", tmp_path / "there"
    there.mkdir()
    assert not may_share_device({}, absent)
    assert may_share_device({}, there), "CUDA looks at its default place without being told"
    assert may_share_device({"CUDA_MPS_PIPE_DIRECTORY": str(absent)}, absent), "its daemon may come to be there"


class Tensor:
    """A tensor of which only its place and its geometry matter."""

    def __init__(self, kind: str = "cpu", index: int | None = None) -> None:
        self.device = SimpleNamespace(type=kind, index=index)
        self.shape = (BLOCKS, BLOCK_BYTES)

    def stride(self) -> tuple[int, int]:
        return BLOCK_BYTES, 1

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return 1 << 20


def test_one_device_holds_every_layer() -> None:
    assert device_of({"a": Tensor(), "b": Tensor()}) is None
    assert device_of({"a": Tensor("cuda", 3), "b": Tensor("cuda", 3)}) == 3


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((("cuda", 0), ("cuda", 1)), "layer b lies on"),
        ((("cuda", 0), ("cpu", None)), "layer b lies on"),
        ((("cpu", None), ("cuda", 0)), "must be in one place"),
        ((("xpu", 0), ("xpu", 0)), "layer a lies on"),
    ],
)
def test_kv_in_several_places_is_refused_with_the_remedy(places: tuple[Any, Any], says: str) -> None:
    tensors = {name: Tensor(*place) for name, place in zip("ab", places, strict=True)}
    with pytest.raises(ConfigurationError, match=says) as refused:
        layout_of(tensors, BLOCKS)
    assert "start the engine without" in str(refused.value)


def test_layers_of_one_step_of_the_forward_are_named_together() -> None:
    tensors = {name: Tensor() for name in ("k0", "v0", "k1", "v1")}
    assert layout_of(tensors, BLOCKS, [0, 0, 1, 1]).steps == ((0, 2), (2, 4))
    assert layout_of(tensors, BLOCKS).steps == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_pages_are_settled_by_whoever_knows_the_device() -> None:
    settled: list[bool] = []
    pages = TensorPages([np.zeros(1)], 1, lambda: settled.append(True))
    pages.settle()
    assert settled == [True]
    TensorPages([np.zeros(1)], 1).settle()
