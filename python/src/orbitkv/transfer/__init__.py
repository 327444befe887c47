"""Copies between engine pages and arenas: the plan, the interface of a backend and the factory.

A plan names whole pages: for each an engine block and the location of the page's part in an arena. Layer l of a page
lies at `slice_offset + layer.offset` of that location, unpadded, all layers in forward order. A backend copies the
restores of one engine step together, in the forward's order, and says when each layer is in place, so that the engine's
forward overlaps with the copy.

Whoever submits never blocks; queues are bounded and refuse (TransferError) when they are full. `on_done` is called
once for each accepted plan, by a thread of the backend, at once: terminal reports go to the Cache Manager from there.
Only a plan whose end is unknown, since the device faulted, is never reported (I8). An accepted restore is carried out
even when the backend closes, since an engine may have promised its bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from orbitkv._arenas import Arena
from orbitkv.errors import ConfigurationError, DeviceError
from orbitkv.transfer._calibrate import choose, measure, usual_piece
from orbitkv.transfer._cuda import CudaDriver
from orbitkv.transfer._device import DeviceBackend
from orbitkv.transfer._digest import DIGEST_BYTES, DIGEST_FORMAT, DIGEST_LAYER, is_verified
from orbitkv.transfer._direct import DirectMover
from orbitkv.transfer._driver import DeviceSite
from orbitkv.transfer._host import HostBackend
from orbitkv.transfer._locked import LockedMemory, copy_one
from orbitkv.transfer._plan import CopyPlan, KVLayout, LayerLayout, TensorLike
from orbitkv.transfer._transfer import STALL_SECONDS, CopyTimes, Publish, Restore, Transfer

__all__ = [
    "BACKENDS",
    "DIGEST_BYTES",
    "DIGEST_FORMAT",
    "DIGEST_LAYER",
    "STALL_SECONDS",
    "CopyPlan",
    "CopyTimes",
    "CudaDriver",
    "DeviceBackend",
    "DeviceSite",
    "HostBackend",
    "KVLayout",
    "LayerLayout",
    "LockedMemory",
    "Publish",
    "Restore",
    "TensorLike",
    "Transfer",
    "TransferBackend",
    "choose_backend",
    "copy_one",
    "is_verified",
    "make_backend",
]

BACKENDS = ("host", "direct", "kernel")
AUTO = "auto"
KERNEL_NEEDS = ("torch", "triton")

log = logging.getLogger("orbitkv.transfer")


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


def choose_backend(setting: str, layout: KVLayout, site: DeviceSite | None) -> str:
    """Return the backend that the setting means for KV of this layout; `site` is None for host memory.

    With `auto` on a device the rates of this machine decide. ConfigurationError with the remedy.
    """
    if setting not in (AUTO, *BACKENDS):
        raise unknown(setting, (AUTO, *BACKENDS))
    if site is None:
        if setting in (AUTO, "host"):
            return "host"
        raise ConfigurationError(
            f"orbitkv.transfer_backend is {setting!r}, which copies to and from a CUDA device, and this engine's KV "
            f"lies in host memory: set it to {AUTO!r}, or remove it"
        )
    if setting == "host":
        raise ConfigurationError(
            f"orbitkv.transfer_backend is 'host', which copies host memory only, and this engine's KV lies on CUDA "
            f"device {site.driver.index}: set it to {AUTO!r}, or remove it"
        )
    return setting if setting != AUTO else measured_choice(layout, site)


def measured_choice(layout: KVLayout, site: DeviceSite) -> str:
    """Return the device backend that this machine's rates speak for, and log them."""
    piece = usual_piece(layout)
    try:
        rates = measure(site.driver, piece)
    except DeviceError as fault:
        log.warning(
            "the rates of CUDA device %d cannot be measured, so copies are direct: %s", site.driver.index, fault
        )
        return "direct"
    available = all(importlib.util.find_spec(name) is not None for name in KERNEL_NEEDS)
    chosen = choose(rates, available)
    log.info(
        "CUDA device %d on NUMA node %d: one copy goes at %.1f GB/s, batches of %d-byte pieces at %.1f (%.0f %%): %s",
        site.driver.index,
        site.numa,
        rates.link / 1e9,
        piece,
        rates.batch / 1e9,
        100 * rates.batch / rates.link,
        chosen if available else f"{chosen}, since the kernel's {' and '.join(KERNEL_NEEDS)} are not installed",
    )
    return chosen


def make_backend(
    name: str,
    *,
    layout: KVLayout,
    site: DeviceSite | None = None,
    layer_delay_us: int = 0,
    on_layer: Callable[[Transfer, int], None] | None = None,
) -> TransferBackend:
    """Return the backend of that name. `layer_delay_us` slows the host backend down, for tests.

    `layout` is the engine's and `site` where it lies when that is a device; pages of a verified layout are checked
    there. `on_layer(transfer, layer)` is called when a layer of a restore is in place. ConfigurationError names the
    backends that exist, or what one needs; DeviceError when the device fails.
    """
    if name == "host":
        return HostBackend(layer_delay_us=layer_delay_us, on_layer=on_layer)
    if name not in BACKENDS:
        raise unknown(name, BACKENDS)
    if site is None:
        raise ConfigurationError(f"the {name} backend needs a CUDA device, and the engine's KV lies in host memory")
    with ExitStack() as undo:
        mover = (
            DirectMover(site.driver)
            if name == "direct"
            else kernel_part("orbitkv.kernel.mover").KernelMover(site.driver, layout)
        )
        undo.callback(mover.close)
        verifier = None
        if is_verified(layout):
            verifier = kernel_part("orbitkv.kernel.verifier").DigestVerifier(site.driver, layout)
            undo.callback(verifier.close)
        backend = DeviceBackend(site, mover, verifier=verifier, on_layer=on_layer)
        undo.pop_all()
        return backend


def kernel_part(name: str) -> Any:
    """Import a module of `orbitkv.kernel`. ConfigurationError when what it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as fault:
        raise ConfigurationError(
            f"copies or checks by a kernel need {' and '.join(KERNEL_NEEDS)}: {fault}. Install them, or set "
            "orbitkv.transfer_backend to 'direct' and remove orbitkv.verify"
        ) from fault


def unknown(name: str, names: Sequence[str]) -> ConfigurationError:
    """Return what is said of a backend that does not exist."""
    return ConfigurationError(f"transfer backend {name!r} does not exist; choose one of: {', '.join(names)}")
