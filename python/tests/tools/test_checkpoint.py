"""The checkpoint's bytes are a function of its values, and its file is one that the engines' loaders read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from harness import checkpoint
from harness.checkpoint import Checkpoint

SMALL = Checkpoint(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, vocabulary=64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own."""
    monkeypatch.setenv("ORBITKV_CACHE", str(tmp_path / "cache"))


def tensors(folder: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Read the file as its format says, independently of the writer."""
    image = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(image[:8], "little")
    found = {}
    for name, facts in json.loads(image[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in facts["data_offsets"])
            halves = np.frombuffer(image[begin:end], dtype="<u2").astype(np.uint32) << 16
            found[name] = halves.view(np.float32).reshape(facts["shape"])
    return found


def test_same_values_are_the_same_bytes_and_one_folder(tmp_path: Path) -> None:
    first = checkpoint.ensure(SMALL)
    again = tmp_path / "again"
    again.mkdir()
    checkpoint.write(SMALL, again)
    assert checkpoint.ensure(SMALL) == first
    assert (again / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert [entry.name for entry in first.parent.iterdir()] == [first.name]


def test_one_differing_value_is_another_folder() -> None:
    other = checkpoint.ensure(dataclasses.replace(SMALL, seed=1))
    assert other != checkpoint.ensure(SMALL)


def test_tensors_have_the_shapes_and_spread_that_were_asked_for() -> None:
    found = tensors(checkpoint.ensure(SMALL))
    assert found["model.layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    assert found["model.layers.0.self_attn.o_proj.weight"].shape == (32, 32)
    assert np.all(found["model.layers.0.self_attn.q_norm.weight"] == SMALL.qk_norm)
    embedding = found["model.embed_tokens.weight"]
    assert embedding.shape == (64, 32)
    assert abs(float(embedding.std()) - SMALL.weight_deviation) < 0.02
    assert not np.array_equal(embedding, found["lm_head.weight"])


def test_rounding_is_to_the_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.0], dtype=np.float32)
    rounded = [0x3F80, 0x3F80, 0x3F82, 0xBF80]
    assert checkpoint._bfloat16(values).tolist() == rounded


def test_tokenizer_names_every_token() -> None:
    folder = checkpoint.ensure(SMALL)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(SMALL.vocabulary))
    assert words["w63"] == 63
