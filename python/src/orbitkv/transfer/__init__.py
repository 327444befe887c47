"""Copies between engine pages and arenas: the plan, the interface of a backend and the factory.

A plan names whole pages: for each an engine block and the location of the page's part in an arena. Layer l of a page
lies at `slice_offset + layer.offset` of that location, unpadded, all layers in forward order. A backend copies the
restores of one engine step together, layer by layer, and says when each layer is in place, so that the engine's forward
overlaps with the copy. One step of the forward (usually one layer) of the whole group is one batch with one event.

Whoever submits never blocks; queues are bounded and refuse (TransferError) when they are full. `on_done` is called
once for each accepted plan, by a thread of the backend, at once: terminal reports go to the Cache Manager from there.
Only a plan whose end is unknown, since the device faulted, is never reported (I8). An accepted restore is carried out
even when the backend closes, since an engine may have promised its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from orbitkv._arenas import Arena
from orbitkv.errors import ConfigurationError
from orbitkv.transfer._driver import DeviceSite
from orbitkv.transfer._host import HostBackend
from orbitkv.transfer._pieces import LOCATION_UNIT
from orbitkv.transfer._plan import CopyPlan, KVLayout, LayerLayout, TensorLike
from orbitkv.transfer._transfer import STALL_SECONDS, CopyTimes, Publish, Restore, Transfer

__all__ = [
    "BACKENDS",
    "LOCATION_UNIT",
    "STALL_SECONDS",
    "CopyPlan",
    "CopyTimes",
    "DeviceSite",
    "HostBackend",
    "KVLayout",
    "LayerLayout",
    "Publish",
    "Restore",
    "TensorLike",
    "Transfer",
    "TransferBackend",
    "make_backend",
]

BACKENDS = ("host",)


class TransferBackend(Protocol):
    """What an adapter asks of a backend. Thread-safe."""

    @property
    def name(self) -> str:
        """Return the backend's name, as it stands in `attach`, logs and metrics."""
        ...

    def register_arena(self, arena: Arena) -> None:
        """Make an arena usable in plans. Any OrbitKVError means that it is not."""
        ...

    def unregister_arena(self, arena: int) -> None:
        """Refuse the arena in later plans; copies that run keep it mapped until they end."""
        ...

    def restore(self, plans: Sequence[CopyPlan], *, on_done: Callable[[Transfer], None]) -> list[Restore]:
        """Submit the arena-to-engine copies of one engine step, a group. TransferError: nothing was submitted."""
        ...

    def publish(self, plan: CopyPlan, *, on_done: Callable[[Transfer], None]) -> Publish:
        """Submit copies of what the engine launched so far writes. TransferError: nothing was submitted."""
        ...

    def check(self) -> None:
        """Raise what must end the engine; its thread calls this in each step.

        TransferStalled when a copy is older than STALL_SECONDS, EngineFault when the device faulted.
        """
        ...

    def close(self) -> None:
        """Finish accepted restores and the running publish, fail publishes that have not begun, join the threads."""
        ...


def make_backend(
    name: str,
    *,
    layout: KVLayout,
    site: DeviceSite | None = None,
    layer_delay_us: int = 0,
    on_layer: Callable[[Transfer, int], None] | None = None,
) -> TransferBackend:
    """Return the backend of that name. `layer_delay_us` slows the host backend down, for tests.

    `layout` is the engine's and `site` where it lies when that is a device. `on_layer(transfer, layer)` is called when
    a layer of a restore is in place. ConfigurationError names the backends that exist.
    """
    if name == "host":
        return HostBackend(layer_delay_us=layer_delay_us, on_layer=on_layer)
    raise ConfigurationError(f"transfer backend {name!r} does not exist; choose one of: {', '.join(BACKENDS)}")
