"""Settings of an engine that hands none over: the file that ORBITKV_CONFIG names."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitkv.adapter.settings import read_file, read_settings
from orbitkv.errors import ConfigurationError


def named(path: Path) -> dict[str, str]:
    return {"ORBITKV_CONFIG": str(path)}


def test_no_file_is_no_key() -> None:
    assert read_file({}) == {}
    assert read_file({"ORBITKV_CONFIG": ""}) == {}


def test_a_key_of_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "orbitkv.json"
    file.write_text('{"orbitkv.socket": "/from/file", "orbitkv.timeout_ms": 70}')
    environment = named(file) | {"ORBITKV_SOCKET": "/from/environment", "ORBITKV_LOAD_WAIT_MS": "5"}
    settings = read_settings(read_file(environment), environment)
    assert (settings.socket, settings.timeout_ms, settings.load_wait_ms) == ("/from/file", 70, 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be used"),
        ("[]", "one object of connector keys"),
        ('{"socket": "/x"}', "unknown connector keys socket; the keys are orbitkv"),
        ('{"orbitkv.sockett": "/x"}', "unknown connector keys orbitkv.sockett"),
    ],
)
def test_a_file_that_cannot_work_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "orbitkv.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        read_file(named(file))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ORBITKV_CONFIG names .*absent\.json"):
        read_file(named(tmp_path / "absent.json"))


def test_a_misspelt_variable_is_named_with_what_was_meant(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"ORBITKV_SOCKT": "/x", "ORBITKV_SCOPE": "y"}
    read_settings({}, wrong | {"ORBITKV_POOL_SIZE": "1gib", "ORBITKV_CACHE": "/z", "ORBITKV_TIMEOUT_MS": "100"})
    assert caplog.messages == [
        "OrbitKV: nothing reads ORBITKV_SCOPE",
        "OrbitKV: nothing reads ORBITKV_SOCKT; did you mean ORBITKV_SOCKET?",
    ]


@pytest.mark.parametrize("value", [["/a"], None, True, 1.5, {}])
def test_a_value_that_is_neither_text_nor_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="must be text or a whole number"):
        read_settings({"orbitkv.socket": value}, {})
