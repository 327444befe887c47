"""Which backend copies between a rank's KV and the arenas, decided once a rank, and what its death leaves behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.settings import Settings
from orbitkv.errors import ConfigurationError
from orbitkv.transfer import DeviceSite, KVLayout, Transfer, TransferBackend, choose_backend, make_backend

MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DEFAULT = Path("/tmp", "nvidia-mps")  # where CUDA looks by default, and so does the daemon

log = logging.getLogger(LOGGER)


class BackendChoice:
    """The one backend of a rank, for the life of its process: every session with a Manager makes it anew from here.

    `writer` is what the rank declares when it attaches, by which the Manager treats its reserved slices at its death:

    host          the processor copies, so nothing writes once the process has exited
    cuda          the device copies, and the driver ends this process's work on it before the exit is complete
    cuda_shared   the same under MPS, where work runs in the context of a server that outlives its clients: what was
                  submitted may still write, so the slices stay quarantined until the Manager restarts

    A client of MPS is not told that it is one, and the driver decides it by the directory of the daemon's pipes. So a
    directory that is named or reachable counts: a wrong "cuda" would let a late write land in another's page, a wrong
    "cuda_shared" costs the reserved pages of a process that died. The other half of the declaration, that no child
    shares the device's descriptors, holds by how engines start: a process that uses CUDA begins others by running a new
    program, and the driver opens its descriptors so that none of them gets one.
    """

    def __init__(self, settings: Settings, layout: KVLayout, site: DeviceSite | None = None) -> None:
        """Measure and decide. `site` is None when the KV lies in host memory. ConfigurationError with the remedy."""
        if settings.verify and site is None:
            raise ConfigurationError(
                f"orbitkv.verify is {settings.verify!r}, and this engine's KV lies in host memory, where no device "
                "checks it: remove orbitkv.verify"
            )
        self._settings = settings
        self._layout = layout
        self._serving = False
        self._site = None if site is None else replace(site, serving=lambda: self._serving)
        self.name = choose_backend(settings.transfer_backend, layout, site)
        self.writer = "host" if site is None else "cuda_shared" if may_share_device() else "cuda"
        if site is None:
            log.info("copies by the %s backend, %d bytes a page", self.name, layout.slice_bytes)
        else:
            log.info(
                "copies by the %s backend on CUDA device %d (%s), NUMA node %d, %d bytes a page, writer %s",
                self.name,
                site.driver.index,
                site.driver.bus_id(),
                site.numa,
                layout.slice_bytes,
                self.writer,
            )

    def serve(self) -> None:
        """Say that the engine has proved its tensors and goes on: arenas are registered with pauses from now on."""
        self._serving = True

    def make(self, on_layer: Callable[[Transfer, int], None] | None = None) -> TransferBackend:
        """Return a backend of this choice; `on_layer(transfer, layer)` is called when a restored layer is in place."""
        return make_backend(
            self.name,
            layout=self._layout,
            site=self._site,
            layer_delay_us=self._settings.host_copy_delay_us,
            on_layer=on_layer,
        )


def may_share_device(environment: Mapping[str, str] | None = None, default: Path = MPS_DEFAULT) -> bool:
    """Return whether CUDA would look for an MPS daemon and could reach one's pipes."""
    values = os.environ if environment is None else environment
    return bool(values.get(MPS_DIRECTORY)) or os.access(default, os.R_OK | os.X_OK)
