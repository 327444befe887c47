"""Copies of a real engine that a test holds in the middle, by files in a folder that both see.

An order names a direction and a layer: every copy in that direction stops before that layer, says so in a file of its
process, and goes on when the order is gone. So "in mid-restore" is a state that a test waits for, never a guess.

`Gate` is the test's side. `pass_gate` is the engine's, where `put_into_copies` puts it into the copying threads:
`harness.gated` calls that in vLLM, an entry point (`harness.plugin.gated`) in SGLang.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.manager import eventually
from orbitkv.adapter import backends
from orbitkv.transfer import DeviceSite, HostBackend, KVLayout, Restore, Transfer, TransferBackend

FOLDER = "ORBITKV_TEST_GATE"  # environment of the engine: the folder of the orders
RESTORE, PUBLISH = "restore", "publish"
POLL_S = 0.002


class Gate:
    """Gives and takes back orders. One order a direction at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.open()

    def hold(self, direction: str, layer: int) -> None:
        """Stop every copy in that direction that reaches that layer from now on."""
        draft = self.folder / f"{direction}.draft"
        draft.write_text(str(layer), encoding="ascii")
        draft.rename(self.folder / f"{direction}.order")

    def wait_held(self, direction: str, processes: int = 1) -> None:
        """Return once so many processes hold a copy."""
        eventually(lambda: len(self.holding(direction)) >= processes, f"{processes} processes hold a {direction}")

    def holding(self, direction: str) -> list[int]:
        """Return the processes that hold a copy."""
        return sorted(int(path.name.rpartition(".")[2]) for path in self.folder.glob(f"{direction}.held.*"))

    def open_after(self, holds: Callable[[], bool]) -> threading.Event:
        """Open from a thread of its own once a condition holds, while this one waits for what is held.

        The event is set before anything passes.
        """
        opening = threading.Event()

        def run() -> None:
            eventually(holds, "the condition for the gate to open")
            opening.set()
            self.open()

        threading.Thread(target=run, name="gate-opener", daemon=True).start()
        return opening

    def open(self, *directions: str) -> None:
        """Let everything pass, in the named directions or in both."""
        for direction in directions or (RESTORE, PUBLISH):
            for path in self.folder.glob(f"{direction}.*"):
                path.unlink(missing_ok=True)


def pass_gate(transfer: Transfer, layer: int) -> None:
    """Stop the copying thread here while an order says so."""
    direction = RESTORE if isinstance(transfer, Restore) else PUBLISH
    folder = Path(os.environ[FOLDER])
    order = folder / f"{direction}.order"
    if not ordered(order, layer):
        return
    held = folder / f"{direction}.held.{os.getpid()}"
    held.touch()
    while ordered(order, layer):
        time.sleep(POLL_S)
    held.unlink(missing_ok=True)


def ordered(order: Path, layer: int) -> bool:
    """Return whether the order is there and names the layer."""
    try:
        return int(order.read_text(encoding="ascii")) == layer
    except FileNotFoundError:
        return False


def put_into_copies() -> None:
    """Give the engine that runs in this process copying threads with the gate; nothing else of the product differs."""
    setattr(backends, "make_backend", gated_backend)  # noqa: B010 - its type is the factory's, narrower than this one


def gated_backend(name: str, *, layout: KVLayout, site: DeviceSite | None, **options: Any) -> TransferBackend:  # noqa: ARG001
    """Return the host backend with the gate before each layer, in the place of `make_backend`."""
    if name != "host" or site is not None:
        raise ValueError(f"only the host backend has a gate, not {name!r}")
    return HostBackend(before_layer=pass_gate, **options)
