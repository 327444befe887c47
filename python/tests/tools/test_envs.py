"""Environments are named by their pins, made once, and made anew when they are not whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import envs
from envs import Environment, EnvironmentFailure, Interpreter

HERE = Interpreter(sys.executable, (3, 11, 7))
Build = Callable[[Environment, Interpreter, Path, "Path | None"], None]


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of pins with one environment, `small`, and a cache of this test's own."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "uv.txt").write_text("uv==1\n")
    (tmp_path / "envs" / "small.txt").write_text("numpy==1\n")
    monkeypatch.setattr(envs, "PINS", tmp_path / "envs")
    span = sys.version_info[:2]
    table = {name: Environment(name, span, span, 0) for name in ("uv", "small")}
    monkeypatch.setattr(envs, "ENVIRONMENTS", table)
    monkeypatch.setenv("ORBITKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "envs"


def builder(built: list[str]) -> Build:
    """Return a builder that only notes what it was asked for."""

    def build(env: Environment, python: Interpreter, folder: Path, uv: Path | None) -> None:
        built.append(env.name)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(python.path)

    return build


def test_made_once_and_named_by_its_pins(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(envs, "build", builder(built))
    first = envs.ensure("small")
    assert envs.ensure("small") == first
    assert built == ["uv", "small"]
    (pins / "small.txt").write_text("numpy==2\n")
    assert envs.ensure("small") != first
    assert built == ["uv", "small", "small"]
    assert envs.is_whole(first)


def test_another_python_is_another_folder(pins: Path) -> None:
    small = envs.ENVIRONMENTS["small"]
    assert envs.folder_of(small, HERE) != envs.folder_of(small, Interpreter(sys.executable, (3, 11, 8)))


@pytest.mark.parametrize("lost", [envs.MARKER, "bin/python"])
def test_what_is_not_whole_is_made_anew(pins: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    built: list[str] = []
    monkeypatch.setattr(envs, "build", builder(built))
    folder = envs.ensure("small")
    (folder / lost).unlink()
    (folder / "litter").touch()
    assert envs.ensure("small") == folder
    assert built == ["uv", "small", "small"]
    assert envs.is_whole(folder)
    assert not (folder / "litter").exists()


def test_failed_step_leaves_no_folder(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(env: Environment, *command: str) -> None:
        raise EnvironmentFailure("no network")

    monkeypatch.setattr(envs, "run", fail)
    with pytest.raises(EnvironmentFailure, match="no network"):
        envs.ensure("uv")
    assert not [entry for entry in (pins.parent / "cache" / "envs").iterdir() if entry.is_dir()]


def test_missing_interpreter_is_told_with_what_was_found(pins: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"needs Python 3\.2 on PATH, found: .* is 3\.") as caught:
        envs.find_interpreter(Environment("old", (3, 2), (3, 2), 0))
    assert "Install python3.2" in str(caught.value)


def test_full_disk_is_told_before_the_build(pins: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="GiB are free"):
        envs.check_disk(Environment("huge", (3, 11), (3, 11), 1 << 60), pins)


def test_every_environment_has_hashed_pins_without_an_address(repository: Path) -> None:
    for env in envs.ENVIRONMENTS.values():
        lines = env.requirements.read_text().splitlines()
        pinned = [line for line in lines if "==" in line]
        assert pinned
        assert all(line.endswith("\\") for line in pinned), f"{env.name}: a pin without a hash"
        assert not [line for line in lines if "://" in line or line.startswith("-")], env.name


def test_what_the_packages_bring_as_source_is_compiled_last(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, ...]] = []
    monkeypatch.setattr(envs, "run", lambda _, *command: steps.append(command))
    envs.build(Environment("small", (3, 11), (3, 11), 0, "program.py"), HERE, pins / "new", Path("uv"))
    assert steps[-1] == (str(pins / "new" / "bin" / "python"), str(envs.ROOT / "tools" / "program.py"))
    assert steps[-2][1:3] == ("pip", "sync")


def test_programs_that_compile_exist(repository: Path) -> None:
    programs = [env.compiles for env in envs.ENVIRONMENTS.values() if env.compiles]
    assert programs == ["sglangcpu.py"]
    assert all((repository / "tools" / program).is_file() for program in programs)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("#!/bin/sh\necho 'openssl/evp.h: No such file or directory' >&2\nexit 1\n", "openssl/evp.h: No such file"),
        ("", "No such file or directory"),
    ],
)
def test_a_machine_that_cannot_compile_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, said: str
) -> None:
    program = tmp_path / "c++"
    if compiler:
        program.write_text(compiler)
        program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(EnvironmentFailure, match=said) as caught:
        envs.check_compiler(Environment("small", (3, 11), (3, 11), 0, "program.py"), HERE)
    assert "Install g++, libssl-dev and" in str(caught.value)
    assert str(program) in str(caught.value)


def test_a_machine_that_cannot_compile_is_told_before_the_build(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(envs, "build", builder(built))
    span = sys.version_info[:2]
    monkeypatch.setitem(envs.ENVIRONMENTS, "small", Environment("small", span, span, 0, "program.py"))
    monkeypatch.setenv("CXX", str(pins / "no-compiler"))
    with pytest.raises(EnvironmentFailure, match="no-compiler"):
        envs.ensure("small")
    assert built == ["uv"]
