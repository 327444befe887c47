"""Real Managers for engine-free tests: each test has its own, and each must end cleanly."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from python.tests.manager.sglang_rig import WORLD, Ranks
from python.tests.manager.vllm_rig import Replica as VllmReplica

from harness.manager import ManagerProcess, eventually
from harness.proxy import DelayProxy
from orbitkv.adapter.attachment import Attachment
from orbitkv.client import Arena, CacheManagerClient
from orbitkv.errors import ArenaError

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., ManagerProcess]
Spawn = Callable[..., "subprocess.Popen[str]"]
DELAY_S = 0.004  # the most that a rank hears later than another


@pytest.fixture
def start_manager(orbitkv_binary: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a Manager with a pool size and options; the fixture ends every one."""
    running: list[ManagerProcess] = []

    def start(pool: str = "256mib", *options: str) -> ManagerProcess:
        manager = ManagerProcess(orbitkv_binary, tmp_path / f"m{len(running)}", pool, *options)
        running.append(manager)
        return manager.start()

    yield start
    for manager in running:
        manager.stop()


@pytest.fixture
def manager(start_manager: Start) -> ManagerProcess:
    """Return a Manager with a pool of 256 MiB."""
    return start_manager()


@pytest.fixture(scope="module")
def shared_manager(orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerProcess]:
    """Return a Manager that all tests of one module share; each uses an instance and keys of its own."""
    manager = ManagerProcess(orbitkv_binary, tmp_path_factory.mktemp("shared")).start()
    yield manager
    manager.stop()


@pytest.fixture
def refuse_arenas(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that lets every rank fail to register arenas, with a text, from then on.

    A wait for an arena ends once one was refused, since none will come.
    """

    def begin(text: str) -> None:
        def refuse(_: Attachment, __: Arena) -> None:
            raise ArenaError(text)

        def wait(client: CacheManagerClient, _: int, __: float) -> int:
            eventually(lambda: client.arenas_unusable_because is not None, "an arena is refused")
            return 0

        monkeypatch.setattr(Attachment, "_register_arena", refuse)
        monkeypatch.setattr(CacheManagerClient, "wait_arenas", wait)

    return begin


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Return a function that starts a process of harness.load, or of another module; the fixture ends every one."""
    running: list[subprocess.Popen[str]] = []
    path = f"{ROOT / 'python' / 'src'}:{ROOT / 'tools'}"

    def start(*arguments: object, module: str = "harness.load") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def replica(manager: ManagerProcess) -> Iterator[Callable[..., VllmReplica]]:
    """Return a function that makes a usable replica of vLLM; the fixture ends every one."""
    made: list[VllmReplica] = []

    def make(world: int = 1, wait: bool = True, **options: object) -> VllmReplica:
        made.append(VllmReplica(manager.socket, world, **options))  # type: ignore[arg-type]
        if wait:
            eventually(made[-1].usable, "the instance is usable")
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def ranks(manager: ManagerProcess, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Return a function that makes an instance of SGLang's two ranks; `delays` is the seed of delays, if any."""
    made: list[Ranks] = []
    proxies: list[DelayProxy] = []
    numbers = itertools.count()

    def make(name: str = "engine-1", delays: int | None = None, **options: object) -> Ranks:
        sockets = [manager.socket] * WORLD
        if delays is not None:
            proxies.extend(
                DelayProxy(tmp_path / f"p{next(numbers)}", manager.socket, WORLD * delays + rank, DELAY_S)
                for rank in range(WORLD)
            )
            sockets = [proxy.path for proxy in proxies[-WORLD:]]
        made.append(Ranks(sockets, name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
    for proxy in proxies:
        proxy.close()
