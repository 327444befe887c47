"""What stands in for SGLang's kernels refuses to be called, and a lock that a killed process left is removed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sglangcpu


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return the lock of an environment's compiled hash; it is there."""
    path = tmp_path / "native" / sglangcpu.HASH_MODULE / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_lock_without_a_holder_is_removed(tmp_path: Path, lock: Path) -> None:
    assert sglangcpu.remove_abandoned_lock(tmp_path)
    assert not lock.exists()
    assert not sglangcpu.remove_abandoned_lock(tmp_path)


def test_a_lock_that_is_held_is_left(tmp_path: Path, lock: Path) -> None:
    with lock.open("rb"):
        assert not sglangcpu.remove_abandoned_lock(tmp_path)
        assert lock.exists()


def test_the_compiled_hash_lies_in_the_environment(tmp_path: Path) -> None:
    variables = sglangcpu.variables(tmp_path)
    assert variables["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "native")
    assert variables["PATH"].startswith(f"{tmp_path}/bin:")


def test_the_stand_in_has_every_name_and_refuses_every_call() -> None:
    path = sglangcpu.STANDINS / "sgl_kernel.py"
    spec = importlib.util.spec_from_file_location("sgl_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.verify_tree_greedy_cpu was called"):
        module.verify_tree_greedy_cpu(1, two=2)
    with pytest.raises(AttributeError):
        _ = module.__path__
