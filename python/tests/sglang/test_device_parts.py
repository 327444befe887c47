"""What the adapter asks of SGLang's configuration for KV on a device, without one."""

from __future__ import annotations

import dataclasses

from harness import sglang_modules  # noqa: F401

# isort: split
import pytest
from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig, PhaseConfig

from harness.device import FakeDriver
from harness.sglang_parts import Context
from orbitkv._numa import node_of_process
from orbitkv.errors import ConfigurationError
from orbitkv.sglang import backend, engine
from orbitkv.transfer import DeviceSite


def test_pages_that_cannot_be_taken_back_are_not_verified(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITKV_VERIFY", "gpu")
    with pytest.raises(ConfigurationError, match=r"remove orbitkv\.verify, and ORBITKV_VERIFY"):
        backend.create_cache(context())


@pytest.mark.parametrize("prefill", Backend.ALL)
def test_a_prefill_asks_for_its_layers_unless_it_is_one_graph(context: Context, prefill: str) -> None:
    config = CudaGraphConfig(prefill=PhaseConfig(backend=prefill))
    tensors = engine.tensors_of(context(flags={"cuda_graph_config": config}))
    assert tensors.layers_ask is (prefill != Backend.FULL)


def test_a_rank_is_next_to_its_device(context: Context) -> None:
    ctx = context()
    tensors = engine.tensors_of(ctx)
    assert engine.place_of_rank(ctx, tensors).numa == node_of_process()
    with FakeDriver() as driver:
        site = DeviceSite(driver, lambda: 0, lambda: (0,), numa=3)
        assert engine.place_of_rank(ctx, dataclasses.replace(tensors, site=site)).numa == 3
