"""Small random Qwen3 checkpoints with a synthetic tokenizer, made without a download and without torch.

The weights are large enough, and attention peaked enough (`qk_norm`), that the content of the KV cache decides the
output: with the engines' own dummy weights K and V are about 1e-6 and corrupted KV yields the same tokens, and with
plain random weights attention over a long prompt averages a stale layer away. So a test that compares tokens proves
something here, provided that it keeps a control in which corrupted bytes change them.

Token i is the word `w<i>`; 0, 1 and 2 are <unk>, <s> and </s>.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from envs import cache_root

Bits = npt.NDArray[np.uint16]
FIRST_WORD = 3  # Ids below are the special tokens.


@dataclass(frozen=True)
class Checkpoint:
    """Everything that decides a checkpoint's bytes. Two equal values are one folder in the cache."""

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

    def config(self) -> dict[str, Any]:
        """Return the model configuration as the engines read it."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
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


def ensure(checkpoint: Checkpoint) -> Path:
    """Return the checkpoint's folder in the cache, made on the first call.

    The folder is named by the values and by this file, and it is renamed into place whole, so that two makers at once
    end with one folder.
    """
    source = Path(__file__).read_bytes()
    facts = json.dumps(dataclasses.asdict(checkpoint), sort_keys=True).encode()
    folder = cache_root() / "checkpoints" / f"qwen3-{hashlib.sha256(source + facts).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        write(checkpoint, building)
        building.chmod(0o755)
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write configuration, weights and tokenizer into an existing folder."""
    (folder / "config.json").write_text(json.dumps(checkpoint.config(), indent=2), encoding="utf-8")
    _write_safetensors(folder / "model.safetensors", dict(_tensors(checkpoint)))
    tokenizer, settings = _tokenizer(checkpoint)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _tensors(c: Checkpoint) -> Iterator[tuple[str, Bits]]:
    """Yield every tensor's name and bfloat16 bits, in one fixed order so that the seed decides all of them."""
    random = np.random.default_rng(c.seed)

    def matrix(rows: int, columns: int) -> Bits:
        return _bfloat16(random.standard_normal((rows, columns), dtype=np.float32) * np.float32(c.weight_deviation))

    def constant(size: int, value: float) -> Bits:
        return _bfloat16(np.full(size, value, dtype=np.float32))

    queries, keys, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, 2 * c.hidden
    yield "model.embed_tokens.weight", matrix(c.vocabulary, c.hidden)
    for i in range(c.layers):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", constant(c.hidden, 1.0)
        yield f"{layer}.self_attn.q_proj.weight", matrix(queries, c.hidden)
        yield f"{layer}.self_attn.k_proj.weight", matrix(keys, c.hidden)
        yield f"{layer}.self_attn.v_proj.weight", matrix(keys, c.hidden)
        yield f"{layer}.self_attn.o_proj.weight", matrix(c.hidden, queries)
        yield f"{layer}.self_attn.q_norm.weight", constant(c.head_dim, c.qk_norm)
        yield f"{layer}.self_attn.k_norm.weight", constant(c.head_dim, c.qk_norm)
        yield f"{layer}.post_attention_layernorm.weight", constant(c.hidden, 1.0)
        yield f"{layer}.mlp.gate_proj.weight", matrix(wide, c.hidden)
        yield f"{layer}.mlp.up_proj.weight", matrix(wide, c.hidden)
        yield f"{layer}.mlp.down_proj.weight", matrix(c.hidden, wide)
    yield "model.norm.weight", constant(c.hidden, 1.0)
    yield "lm_head.weight", matrix(c.vocabulary, c.hidden)


def _bfloat16(values: npt.NDArray[np.float32]) -> Bits:
    """Return the upper halves of the floats, rounded to the nearest even; numpy has no such type of its own."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_safetensors(path: Path, tensors: dict[str, Bits]) -> None:
    """Write the file format: header length, a JSON header padded to 8 bytes, then the bytes of each tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            out.write(bits.tobytes())
        out.flush()
        os.fsync(out.fileno())


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


def main() -> int:
    """Make the checkpoint named by the options and print its folder."""
    parser = argparse.ArgumentParser(description="Make a small random checkpoint in the cache and print its folder.")
    for field in dataclasses.fields(Checkpoint):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    print(ensure(Checkpoint(**vars(parser.parse_args()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
