"""The checkpoint's bytes are a function of its values, and its file is one that the engines' loaders read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from harness import checkpoint
from harness.checkpoint import Checkpoint

SMALL = Checkpoint(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, vocabulary=64)
SHARDED = dataclasses.replace(SMALL, layers=2, intermediate=96, shard_bytes=12_000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own."""
    monkeypatch.setenv("ORBITKV_CACHE", str(tmp_path / "cache"))


def digest(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(
    folder: Path, name: str = "model.safetensors"
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Read a file as its format says, independently of the writer."""
    image = (folder / name).read_bytes()
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


def test_the_small_checkpoint_keeps_its_bytes_and_its_folder() -> None:
    folder = checkpoint.ensure(Checkpoint())
    assert folder.name == "qwen3-1c46189a2ac60522"
    kept = {
        "config.json": "4b3e0d998a81099bcb9180b7c31ebc175d139ee37ac5de368637c2e1b923eda2",
        "model.safetensors": "26c1733e8a49576038e43561777d7ed346a421dcf8a174e3e142abcdd742a30f",
        "tokenizer.json": "03dd1d34bc79ca2354555f59f78c5596a9e02a63a678d73d9f381c0d9d34eafc",
    }
    assert {name: digest(folder / name) for name in kept} == kept


def test_shards_hold_every_tensor_once_and_keep_their_bound() -> None:
    folder = checkpoint.ensure(SHARDED)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards == [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    found = {name: tensors(folder, name) for name in shards}
    assert index["weight_map"] == {tensor: shard for shard, held in found.items() for tensor in held}
    assert sum(map(len, found.values())) == len(index["weight_map"])
    sizes = [sum(2 * values.size for values in held.values()) for held in found.values()]
    assert max(sizes) <= SHARDED.shard_bytes
    assert sum(sizes) == index["metadata"]["total_size"] == checkpoint.weight_bytes(SHARDED)


def test_sharded_tensors_are_those_of_a_whole_file_in_shape_and_spread_and_no_two_are_alike() -> None:
    folder = checkpoint.ensure(SHARDED)
    held = [tensors(folder, path.name) for path in sorted(folder.glob("*.safetensors"))]
    sharded = {name: values for shard in held for name, values in shard.items()}
    whole = tensors(checkpoint.ensure(dataclasses.replace(SHARDED, shard_bytes=0)))
    assert {name: values.shape for name, values in sharded.items()} == {n: v.shape for n, v in whole.items()}
    assert sharded["model.layers.1.mlp.down_proj.weight"].shape == (32, 96)
    assert np.all(sharded["model.layers.1.self_attn.k_norm.weight"] == SHARDED.qk_norm)
    drawn = [values for values in sharded.values() if values.ndim == 2]
    assert all(abs(float(values.std()) - SHARDED.weight_deviation) < 0.02 for values in drawn)
    assert len({values.ravel()[:16].tobytes() for values in drawn}) == len(drawn)


def test_blocks_of_one_tensor_differ_and_no_byte_depends_on_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BLOCK_VALUES", 256)
    folders = [tmp_path / "one", tmp_path / "many"]
    for folder, threads in zip(folders, (1, 7), strict=True):
        folder.mkdir()
        checkpoint.write(SHARDED, folder, threads)
    assert [digest(path) for path in sorted(folders[0].iterdir())] == [digest(p) for p in sorted(folders[1].iterdir())]
    first = min(path.name for path in folders[1].glob("*.safetensors"))
    embedding = tensors(folders[1], first)["model.embed_tokens.weight"].ravel()
    assert len({embedding[at : at + 256].tobytes() for at in range(0, embedding.size, 256)}) == embedding.size // 256


def test_the_large_shape_is_qwen3_8b_with_the_small_models_sums() -> None:
    large, options = checkpoint.parse(["--shape", "qwen3-8b", "--layers", "2", "--output", "elsewhere"])
    assert (large.layers, options.output) == (2, Path("elsewhere"))
    shape = checkpoint.SHAPES["qwen3-8b"].config()
    wanted = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
    wanted |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    assert {name: shape[name] for name in wanted} == wanted
    assert checkpoint.weight_bytes(checkpoint.SHAPES["qwen3-8b"]) == 16_381_470_720
    small = checkpoint.SHAPES["tiny"]
    assert large.weight_deviation * large.hidden**0.5 == pytest.approx(small.weight_deviation * small.hidden**0.5)
    assert large.qk_norm == small.qk_norm


def test_a_folder_that_holds_something_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(checkpoint.CheckpointFailure, match=r"holds notes\.txt"):
        checkpoint.make(SMALL, tmp_path)


def test_a_disk_that_cannot_hold_the_weights_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: full)
    with pytest.raises(checkpoint.CheckpointFailure, match="0 GB free"):
        checkpoint.write(SHARDED, tmp_path)
    assert not list(tmp_path.iterdir())
