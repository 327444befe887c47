"""The digest of a model's files: one byte changes it, an unchanged file is not read twice, a changed one always is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orbitkv.errors import ConfigurationError
from orbitkv.identity import FINGERPRINT, DigestStore, cache_scope, digest_text, model_digest, model_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model folder with two weight files, a configuration, code and a tokenizer."""
    folder = tmp_path / "model"
    (folder / "shards").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * 5000)
    (folder / "shards" / "more.safetensors").write_bytes(b"v" * 300)
    (folder / "config.json").write_text("{}")
    (folder / "modeling.py").write_text("pass")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def digest(model: Path, cache: Path) -> str:
    return model_digest(model, cache=cache, environment={}).hex


def test_files_that_decide_the_bytes_are_found_in_one_order(model: Path) -> None:
    names = [str(path.relative_to(model)) for path in model_files(model)]
    assert names == ["config.json", "model.safetensors", "modeling.py", "shards/more.safetensors"]


def test_one_weight_byte_changes_the_digest(model: Path, tmp_path: Path) -> None:
    before = digest(model, tmp_path / "cache")
    content = bytearray((model / "model.safetensors").read_bytes())
    content[4321] ^= 1
    (model / "model.safetensors").write_bytes(content)
    assert digest(model, tmp_path / "cache") != before


def test_a_change_that_keeps_size_and_mtime_is_seen(model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    before, times = digest(model, tmp_path / "cache"), path.stat()
    with path.open("r+b") as out:
        out.write(b"x")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert digest(model, tmp_path / "cache") != before


def test_a_copy_elsewhere_is_the_same_model_and_a_renamed_file_is_not(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "shards").mkdir(parents=True)
    for path in model_files(model):
        (copy / path.relative_to(model)).write_bytes(path.read_bytes())
    before = digest(model, tmp_path / "cache")
    assert digest(copy, tmp_path / "cache") == before
    (copy / "model.safetensors").rename(copy / "modela.safetensors")  # The order stays.
    assert digest(copy, tmp_path / "cache") != before


def test_an_unchanged_file_is_read_once(model: Path, tmp_path: Path) -> None:
    first = model_digest(model, cache=tmp_path / "cache", environment={})
    again = model_digest(model, cache=tmp_path / "cache", environment={})
    assert first.read_bytes == first.bytes > 5000
    assert (again.hex, again.read_bytes) == (first.hex, 0)
    assert "0 of them read anew" in again.describe()


def test_a_damaged_entry_of_the_store_is_read_anew(model: Path, tmp_path: Path) -> None:
    before = digest(model, tmp_path / "cache")
    for entry in (tmp_path / "cache").iterdir():
        entry.write_text("not a digest")
    assert digest(model, tmp_path / "cache") == before


def test_a_cache_folder_that_cannot_be_made_costs_the_reading_only(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = model_digest(model, cache=tmp_path / "file" / "cache", environment={})
    assert blocked.hex == digest(model, tmp_path / "cache")


def test_a_file_that_changes_while_it_is_read_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model / "model.safetensors"

    def grow(_: Path) -> str:
        path.write_bytes(b"longer" * 2000)
        return "0" * 64

    monkeypatch.setattr("orbitkv.identity.hash_file", grow)
    with pytest.raises(ConfigurationError, match="changed while"):
        DigestStore(tmp_path).digest(path)


def test_a_folder_without_weights_names_the_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=FINGERPRINT):
        model_digest(tmp_path, cache=tmp_path / "cache", environment={})


def test_the_override_replaces_the_reading(tmp_path: Path) -> None:
    given = model_digest(tmp_path / "absent", environment={FINGERPRINT: "ab" * 32})
    assert given.hex == "ab" * 32
    assert FINGERPRINT in given.describe()


@pytest.mark.parametrize("value", ["ab", "AB" * 32, "zz" * 32, "ab" * 33])
def test_an_override_that_is_no_fingerprint_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError, match="64 lowercase"):
        model_digest(tmp_path, environment={FINGERPRINT: value})


def test_the_scope_comes_from_the_environment() -> None:
    assert cache_scope({"ORBITKV_CACHE_SCOPE": "blue"}) == "blue"
    assert cache_scope({}) == ""


def test_lists_of_strings_do_not_run_into_each_other() -> None:
    assert digest_text(["ab", "c"]) != digest_text(["a", "bc"])
