"""Real SGLang engines for tests: shared by all tests of one configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.sglang import SglangPool
from harness.sglang_rig import SglangRig


@pytest.fixture(scope="session")
def engines() -> Iterator[SglangPool]:
    """Return the pool of the session; it is empty again when the session ends."""
    pool = SglangPool()
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="session")
def rig(orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory, engines: SglangPool) -> Iterator[SglangRig]:
    """Return an engine, a Manager and a gate in the engine's copying threads, shared by all tests with OrbitKV."""
    # The engines end first, and the Manager ends although an engine does not.
    with closing(SglangRig(orbitkv_binary, tmp_path_factory.mktemp("rig"), engines)) as rig, closing(engines):
        yield rig


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a model that has weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ORBITKV_MODEL_FINGERPRINT", raising=False)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 100)
    return folder


@pytest.fixture
def context(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that makes what SGLang hands to a factory; see `harness.sglang_parts.contexts`."""
    from harness.sglang_parts import contexts

    monkeypatch.setenv("ORBITKV_SOCKET", str(tmp_path / "absent.sock"))
    with contexts(model) as make:
        yield make


@pytest.fixture(scope="module")
def configured() -> Iterator[None]:
    """Give SGLang's objects the configuration of a server on a CPU."""
    from sglang.srt.runtime_context import get_context

    from harness.sglang_cache import PAGE

    override = get_context().override_server_args(page_size=PAGE, device="cpu", attention_backend="torch_native")
    override.install()
    yield
    override.restore()
