#!/usr/bin/env python3
"""Make the Python environments that the tests, the demo and the linters run in, and print where one is.

Usage: envs.py NAME      make the environment if it is absent or broken; print its folder
       envs.py --list    print every environment with its folder and state

An environment is a pure function of its pins: its folder in the user's cache is named by the hash of the
requirement files, the Python release and this recipe. So it is built once a machine, shared by every clone,
and never edited: other pins are another folder. A marker written last tells a whole environment from a build
that was interrupted, and a file lock makes a second builder wait for the first.

Only the standard library is used, so that a machine with nothing but Python can start here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "envs"
MARKER = "orbitkv-environment.json"
RECIPE = 2  # Raised when the way of building changes, so that older folders are left alone.
GIB = 1 << 30
# The least program that uses all that an environment with `compiles` needs from the machine.
COMPILED = """
#include <Python.h>
#include <openssl/evp.h>
#include <vector>
int main() { return std::vector<bool>{PY_MAJOR_VERSION == 3, EVP_sha256() == nullptr}.empty(); }
"""


@dataclass(frozen=True)
class Environment:
    """One environment: the interpreter range that its pins hold for, and the disk that a cold build takes.

    `compiles` names a program in tools/ that compiles what the packages bring as source; the new Python runs it last.
    """

    name: str
    oldest: tuple[int, int]
    newest: tuple[int, int]
    disk_bytes: int
    compiles: str = ""

    @property
    def requirements(self) -> Path:
        """Return the hashed requirements file; it names every package, so nothing is resolved at install time."""
        return PINS / f"{self.name}.txt"


# An engine is one entry here and one pair of files in envs/ (see CONTRIBUTING.md).
ENVIRONMENTS = {
    e.name: e
    for e in (
        Environment("uv", (3, 10), (3, 14), GIB // 4),
        Environment("dev", (3, 10), (3, 14), GIB // 2),
        Environment("vllm-cpu", (3, 11), (3, 11), 14 * GIB),
        Environment("sglang-cpu", (3, 11), (3, 11), 7 * GIB, "sglangcpu.py"),
    )
}


class EnvironmentFailure(Exception):
    """An environment cannot be made; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that was started once to learn what it is."""

    path: str
    release: tuple[int, int, int]


def cache_root() -> Path:
    """Return the folder for everything that outlives a clone: ORBITKV_CACHE, else the user's cache folder."""
    if named := os.environ.get("ORBITKV_CACHE"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "orbitkv"


def find_interpreter(env: Environment) -> Interpreter:
    """Return the first Python on PATH that the environment's pins hold for, the running one preferred.

    Each candidate is started, since a name on PATH may be a version manager's shim that runs nothing.
    """
    span = range(env.newest[1], env.oldest[1] - 1, -1)
    candidates = [sys.executable, "python3", *(f"python3.{minor}" for minor in span)]
    seen = []
    for candidate in candidates:
        found = probe_interpreter(candidate)
        if found is None:
            continue
        if env.oldest <= found.release[:2] <= env.newest:
            return found
        seen.append(f"{candidate} is {'.'.join(map(str, found.release))}")
    wanted = f"Python {env.oldest[0]}.{env.oldest[1]}"
    if env.newest != env.oldest:
        wanted += f" to {env.newest[0]}.{env.newest[1]}"
    raise EnvironmentFailure(
        f"the environment '{env.name}' needs {wanted} on PATH, found: {'; '.join(dict.fromkeys(seen)) or 'none'}. "
        f"Install python3.{env.oldest[1]} with its venv module and run this again."
    )


def probe_interpreter(candidate: str) -> Interpreter | None:
    """Return what a candidate really is, or None when it does not start."""
    path = shutil.which(candidate)
    if path is None:
        return None
    # Inside a virtual environment the base interpreter is taken: the new environment must outlive that one.
    code = "import sys; print(getattr(sys, '_base_executable', sys.executable), *sys.version_info[:3], sep='\\n')"
    done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = done.stdout.split("\n")
    if done.returncode != 0 or len(lines) < 4:
        return None
    return Interpreter(lines[0], (int(lines[1]), int(lines[2]), int(lines[3])))


def folder_of(env: Environment, python: Interpreter) -> Path:
    """Return the environment's folder, named by everything that decides its content."""
    digest = hashlib.sha256()
    facts = (RECIPE, env.name, python.release, sys.implementation.cache_tag, platform.machine(), sys.platform)
    digest.update(repr(facts).encode())
    digest.update(env.requirements.read_bytes())
    return cache_root() / "envs" / f"{env.name}-{digest.hexdigest()[:16]}"


def is_whole(folder: Path) -> bool:
    """Return whether the marker is there and the interpreter still resolves (its base may have been removed)."""
    return (folder / MARKER).is_file() and os.access(folder / "bin" / "python", os.X_OK)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the environment's lock file; a builder that died has released it with its descriptor."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {folder.name}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(name: str) -> Path:
    """Return the folder of a whole environment, building it first when it is absent or broken."""
    env = ENVIRONMENTS[name]
    python = find_interpreter(env)
    folder = folder_of(env, python)
    if is_whole(folder):
        return folder
    uv = None if name == "uv" else ensure("uv") / "bin" / "uv"
    with locked(folder):
        if is_whole(folder):
            return folder
        if folder.exists():
            say(f"{folder} was left unfinished or lost its Python: it is built anew")
            shutil.rmtree(folder)
        check_disk(env, folder.parent)
        if env.compiles:
            check_compiler(env, python)
        say(f"making the environment '{name}' in {folder}")
        build(env, python, folder, uv)
        facts = {"name": name, "python": python.release, "requirements": env.requirements.name, "recipe": RECIPE}
        (folder / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return folder


def build(env: Environment, python: Interpreter, folder: Path, uv: Path | None) -> None:
    """Fill the folder. pip makes the environment that holds uv, and uv makes all others; both check every hash."""
    try:
        run(env, python.path, "-m", "venv", *(() if uv is None else ("--without-pip",)), str(folder))
        target = folder / "bin" / "python"
        if uv is None:
            options = ("--require-hashes", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input")
            run(env, str(target), "-m", "pip", "install", *options, "-r", str(env.requirements))
        else:
            # sync installs exactly the listed packages, so the engine's own unobtainable pin is never looked at.
            # Compiled once here: an engine starts several interpreters, and each would compile everything again where
            # the folder is not writable or bytecode is not written.
            sync = (str(uv), "pip", "sync", "--require-hashes", "--compile-bytecode", "--quiet")
            run(env, *sync, "--python", str(target), str(env.requirements))
        if env.compiles:
            run(env, str(target), str(ROOT / "tools" / env.compiles))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def run(env: Environment, *command: str) -> None:
    """Run one step of a build with its output on stderr; stdout carries only the folder."""
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    if done.returncode != 0:
        raise EnvironmentFailure(
            f"making '{env.name}' stopped: {' '.join(command)} ended with {done.returncode}. Its own message is above; "
            "a network or package index fault can simply be tried again, a missing venv module is "
            "the system package python3-venv."
        )


def check_disk(env: Environment, where: Path) -> None:
    """Refuse to begin a build that the disk cannot hold."""
    free = shutil.disk_usage(where).free
    if free < env.disk_bytes:
        raise EnvironmentFailure(
            f"the environment '{env.name}' needs about {env.disk_bytes / GIB:.1f} GiB under {where}, {free / GIB:.1f} "
            "GiB are free. Free some space or name another folder in ORBITKV_CACHE."
        )


def check_compiler(env: Environment, python: Interpreter) -> None:
    """Refuse to begin a build whose last step cannot compile, and say what to install."""
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    headers = subprocess.run([python.path, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "-x", "c++", "-", f"-I{headers}", "-lcrypto", "-o", f"{folder}/program"]
        try:
            done = subprocess.run(command, input=COMPILED, capture_output=True, text=True, check=False)
            said = "" if done.returncode == 0 else done.stderr.strip()
        except OSError as error:
            said = str(error)
    if said:
        raise EnvironmentFailure(
            f"the environment '{env.name}' compiles C++ with the headers of OpenSSL and of Python, and {compiler} "
            f"cannot:\n{said}\nInstall g++, libssl-dev and, for a Python of the system, "
            f"python{env.oldest[0]}.{env.oldest[1]}-dev; CXX names another compiler."
        )


def say(text: str) -> None:
    """Tell a person; stdout is left to the answer."""
    print(f"envs: {text}", file=sys.stderr, flush=True)


def list_environments() -> None:
    """Print each environment, its state and its folder."""
    for env in ENVIRONMENTS.values():
        try:
            folder = folder_of(env, find_interpreter(env))
        except EnvironmentFailure as failure:
            print(f"{env.name:10} impossible  {failure}")
            continue
        print(f"{env.name:10} {'ready ' if is_whole(folder) else 'absent'}  {folder}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make a Python environment of this repository and print its folder.")
    parser.add_argument("name", nargs="?", choices=sorted(ENVIRONMENTS))
    parser.add_argument("--list", action="store_true", help="print every environment with its folder and state")
    arguments = parser.parse_args()
    if arguments.list or arguments.name is None:
        list_environments()
        return 0
    try:
        print(ensure(arguments.name))
    except EnvironmentFailure as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
