"""Facts of a model from its path, its revision and its configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orbitkv.adapter.facts import config_digest, digest_of, model_folder


def configuration(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(to_dict=lambda: dict(values))


def test_where_a_configuration_came_from_is_no_fact() -> None:
    before = config_digest(configuration(rope=1, _name_or_path="/a", transformers_version="5.0"))
    assert config_digest(configuration(rope=1, _name_or_path="/b", transformers_version="5.1")) == before
    assert config_digest(configuration(rope=2, _name_or_path="/a", transformers_version="5.0")) != before


def test_a_local_folder_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert model_folder(str(tmp_path / "link"), None) == tmp_path / "model"


def test_other_weights_are_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ORBITKV_MODEL_FINGERPRINT", raising=False)
    digests = []
    for content in (b"a", b"b"):
        folder = tmp_path / content.decode()
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(content)
        digests.append(digest_of(str(folder), None).hex)
    assert digests[0] != digests[1]


def test_a_fingerprint_stands_for_files_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITKV_MODEL_FINGERPRINT", "ab" * 32)
    assert digest_of("/nowhere", "main").hex == "ab" * 32
