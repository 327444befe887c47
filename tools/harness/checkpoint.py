"""Random Qwen3 checkpoints with a synthetic tokenizer, made without a download and without torch.

The weights are large enough, and attention peaked enough (`qk_norm`), that the content of the KV cache decides the
output: with the engines' own dummy weights K and V are about 1e-6 and corrupted KV yields the same tokens, and with
plain random weights attention over a long prompt averages a stale layer away. So a test that compares tokens proves
something here, provided that it keeps a control in which corrupted bytes change them.

Token i is the word `w<i>`; 0, 1 and 2 are <unk>, <s> and </s>.

The small ones of the tests are one file, drawn from one stream of numbers. A checkpoint as large as a model that is
served (`SHAPES`) is written in shards, by many threads at once, each block of values from a stream of its own, so that
the bytes do not depend on the threads. That needs numpy and the folder tools/ alone:

    PYTHONPATH=tools python3 -m harness.checkpoint --shape qwen3-8b --output FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from envs import cache_root

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
FIRST_WORD = 3  # Ids below are the special tokens.
RECIPE = 1  # Raised when equal values would give other bytes, so that older folders are left alone.
# Drawn at once by one thread of a sharded checkpoint: 4 MiB, and as much again twice while rounding.
BLOCK_VALUES = 1 << 20
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that decides a checkpoint's bytes. Two equal values are one folder in the cache.

    `intermediate` 0 means twice the hidden size. `shard_bytes` 0 means one file, anything else the size of a shard at
    most, unless one tensor alone is larger.
    """

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    vocabulary: int = 4096
    positions: int = 16384
    weight_deviation: float = 0.2
    qk_norm: float = 3.0
    seed: int = 0
    intermediate: int = 0
    shard_bytes: int = 0

    @property
    def wide(self) -> int:
        """Return the width inside a feed-forward layer."""
        return self.intermediate or 2 * self.hidden

    def config(self) -> dict[str, Any]:
        """Return the model configuration as the engines read it."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            "hidden_size": self.hidden,
            "intermediate_size": self.wide,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "rope_theta": 1_000_000.0,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "use_cache": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


# A sum over 16 times as many inputs stays where the small model's is with weights of a quarter of its deviation.
SHAPES = {
    "tiny": Checkpoint(),
    "qwen3-8b": Checkpoint(
        layers=36,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        positions=40960,
        weight_deviation=0.05,
        intermediate=12288,
        shard_bytes=4 << 30,
    ),
}


class CheckpointFailure(Exception):
    """A checkpoint cannot be made; the text says what is in the way."""


def ensure(checkpoint: Checkpoint) -> Path:
    """Return the checkpoint's folder in the cache, made on the first call.

    The folder is named by the values and the recipe, and it is renamed into place whole, so that two makers at once end
    with one folder.
    """
    facts = json.dumps({"recipe": RECIPE, **dataclasses.asdict(checkpoint)}, sort_keys=True).encode()
    folder = cache_root() / "checkpoints" / f"qwen3-{hashlib.sha256(facts).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        write(checkpoint, building)
        for path in building.iterdir():
            with path.open("rb") as written:
                os.fsync(written.fileno())
        building.chmod(0o755)
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def write(checkpoint: Checkpoint, folder: Path, threads: int = 0) -> None:
    """Write configuration, weights and tokenizer into an existing folder.

    A sharded checkpoint is drawn by so many threads; 0 means one for each processor that this process may use.
    """
    _check_space(checkpoint, folder)
    (folder / "config.json").write_text(json.dumps(checkpoint.config(), indent=2), encoding="utf-8")
    if checkpoint.shard_bytes:
        _write_shards(checkpoint, folder, threads or len(os.sched_getaffinity(0)))
    else:
        _write_whole(checkpoint, folder / WEIGHTS)
    tokenizer, settings = _tokenizer(checkpoint)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def weight_bytes(checkpoint: Checkpoint) -> int:
    """Return how many bytes all tensors take."""
    return sum(tensor.bytes for tensor in _tensors(checkpoint))


@dataclass(frozen=True)
class _Tensor:
    """One tensor: its name, its shape, and the value of all its elements, or None where they are drawn."""

    name: str
    shape: tuple[int, ...]
    constant: float | None = None

    @property
    def values(self) -> int:
        """Return how many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Return how many bytes its elements take."""
        return 2 * self.values


def _tensors(c: Checkpoint) -> Iterator[_Tensor]:
    """Yield every tensor in one fixed order, by which the streams of numbers are given out."""
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    yield _Tensor("model.embed_tokens.weight", (c.vocabulary, c.hidden))
    for i in range(c.layers):
        layer = f"model.layers.{i}"
        yield _Tensor(f"{layer}.input_layernorm.weight", (c.hidden,), 1.0)
        yield _Tensor(f"{layer}.self_attn.q_proj.weight", (queries, c.hidden))
        yield _Tensor(f"{layer}.self_attn.k_proj.weight", (keys, c.hidden))
        yield _Tensor(f"{layer}.self_attn.v_proj.weight", (keys, c.hidden))
        yield _Tensor(f"{layer}.self_attn.o_proj.weight", (c.hidden, queries))
        yield _Tensor(f"{layer}.self_attn.q_norm.weight", (c.head_dim,), c.qk_norm)
        yield _Tensor(f"{layer}.self_attn.k_norm.weight", (c.head_dim,), c.qk_norm)
        yield _Tensor(f"{layer}.post_attention_layernorm.weight", (c.hidden,), 1.0)
        yield _Tensor(f"{layer}.mlp.gate_proj.weight", (c.wide, c.hidden))
        yield _Tensor(f"{layer}.mlp.up_proj.weight", (c.wide, c.hidden))
        yield _Tensor(f"{layer}.mlp.down_proj.weight", (c.hidden, c.wide))
    yield _Tensor("model.norm.weight", (c.hidden,), 1.0)
    yield _Tensor("lm_head.weight", (c.vocabulary, c.hidden))


def _check_space(checkpoint: Checkpoint, folder: Path) -> None:
    """Refuse to begin what the disk cannot hold."""
    needed, free = weight_bytes(checkpoint), shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointFailure(f"the weights take {needed / 1e9:.1f} GB, {folder} has {free / 1e9:.1f} GB free")


def _fill(tensor: _Tensor, deviation: float, random: np.random.Generator, count: int) -> Bits:
    """Return the bits of so many elements of the tensor, the next ones of the stream where they are drawn."""
    if tensor.constant is not None:
        return _bfloat16(np.full(count, tensor.constant, dtype=np.float32))
    values = random.standard_normal(count, dtype=np.float32)
    values *= np.float32(deviation)
    return _bfloat16(values)


def _bfloat16(values: Floats) -> Bits:
    """Return the upper halves of the floats, rounded to the nearest even; numpy has no such type of its own."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _header(tensors: list[_Tensor]) -> tuple[bytes, list[int]]:
    """Return the head of a weights file (length, JSON padded to 8 bytes), and where in the file each tensor begins."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins, at = [], 0
    for tensor in tensors:
        begins.append(at)
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.bytes]}
        at += tensor.bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, [len(head) + begin for begin in begins]


def _write_whole(c: Checkpoint, path: Path) -> None:
    """Write one file whose elements are all drawn from one stream."""
    tensors = list(_tensors(c))
    random = np.random.default_rng(c.seed)
    with path.open("wb") as out:
        out.write(_header(tensors)[0])
        for tensor in tensors:
            out.write(_fill(tensor, c.weight_deviation, random, tensor.values).tobytes())


def _write_shards(c: Checkpoint, folder: Path, threads: int) -> None:
    """Write the shards and their index. numpy draws and rounds outside of the interpreter's lock, so threads add up."""
    shards = _split(list(_tensors(c)), c.shard_bytes)
    places: dict[str, str] = {}
    order = {tensor.name: i for i, tensor in enumerate(_tensors(c))}
    with ThreadPoolExecutor(threads) as pool:
        for i, tensors in enumerate(shards):
            name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            places |= {tensor.name: name for tensor in tensors}
            head, begins = _header(tensors)
            with (folder / name).open("wb") as out:
                os.pwrite(out.fileno(), head, 0)
                blocks = [
                    (out.fileno(), c, tensor, order[tensor.name], begin, first)
                    for tensor, begin in zip(tensors, begins, strict=True)
                    for first in range(0, tensor.values, BLOCK_VALUES)
                ]
                list(pool.map(_write_block, *zip(*blocks, strict=True)))
    index = {"metadata": {"total_size": weight_bytes(c)}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _split(tensors: list[_Tensor], shard_bytes: int) -> list[list[_Tensor]]:
    """Return the tensors in order, in runs of at most so many bytes, or of one tensor."""
    shards: list[list[_Tensor]] = [[]]
    room = shard_bytes
    for tensor in tensors:
        if tensor.bytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.bytes
    return shards


def _write_block(file: int, c: Checkpoint, tensor: _Tensor, number: int, begin: int, first: int) -> None:
    """Write one block of a tensor, drawn from a stream that its place in the checkpoint alone decides."""
    random = np.random.default_rng((c.seed, number, first // BLOCK_VALUES))
    bits = _fill(tensor, c.weight_deviation, random, min(BLOCK_VALUES, tensor.values - first))
    left, at = memoryview(bits.tobytes()), begin + 2 * first
    while left:
        wrote = os.pwrite(file, left, at)
        left, at = left[wrote:], at + wrote


def _tokenizer(c: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a word-level tokenizer in the form that the tokenizer libraries load, and its settings."""
    special = ("<unk>", "<s>", "</s>")
    words = {word: i for i, word in enumerate(special)} | {f"w{i}": i for i in range(FIRST_WORD, c.vocabulary)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": word, **flags} for i, word in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": c.positions,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    return tokenizer, settings


def parse(words: list[str] | None = None) -> tuple[Checkpoint, argparse.Namespace]:
    """Return the checkpoint that the options name, and the options that say where and how it is made."""
    parser = argparse.ArgumentParser(description="Make a random checkpoint and print its folder.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="the values that the options below begin with")
    parser.add_argument("--output", type=Path, help="an absent or empty folder (default: a folder in the user's cache)")
    parser.add_argument("--threads", type=int, default=0, help="of a sharded checkpoint (default: one a processor)")
    for field in dataclasses.fields(Checkpoint):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default))
    options = parser.parse_args(words)
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Checkpoint)}
    values = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(SHAPES[options.shape], **values), options


def make(checkpoint: Checkpoint, folder: Path, threads: int = 0) -> None:
    """Write a checkpoint into a folder that is absent or empty, and say on stderr how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(entry.name for entry in folder.iterdir()):
        raise CheckpointFailure(f"{folder} holds {', '.join(found[:3])}; name a folder that is absent or empty")
    begun = time.monotonic()
    write(checkpoint, folder, threads)
    took, size = time.monotonic() - begun, weight_bytes(checkpoint) / 1e9
    print(f"checkpoint: {size:.2f} GB of weights in {took:.1f} s, {size / took:.2f} GB/s", file=sys.stderr)


def main() -> int:
    """Make the checkpoint named by the options and print its folder."""
    checkpoint, options = parse()
    try:
        if options.output is None:
            print(ensure(checkpoint))
        else:
            make(checkpoint, options.output, options.threads)
            print(options.output)
    except CheckpointFailure as failure:
        print(f"checkpoint: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
