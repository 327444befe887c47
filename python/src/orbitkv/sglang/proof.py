"""A rank's attachment that is usable once a golden round trip went through its Cache Manager.

At its start a rank proves the engine's tensors through memory of its own, while their pages are spare. What a new life
of the Manager brings, its arenas and its channel, is proved here on pages that are not the engine's, because no page of
a serving engine is spare and the ranks' allocators must stay alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.golden import GoldenCheck, GoldenResult
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.settings import Settings
from orbitkv.sglang.scratch import Scratch
from orbitkv.timeline import Timeline
from orbitkv.transfer import KVLayout

SCRATCH_PAGES = 2

log = logging.getLogger(LOGGER)


class ProvenAttachment(Attachment):
    """See the module's text. `result` is the last outcome; a mismatch stays, and with it the rank gets no hits."""

    def __init__(
        self,
        settings: Settings,
        place: RankPlace,
        layout: KVLayout,
        facts: Mapping[str, str],
        timeline: Timeline,
        previous: ProvenAttachment | None,
        epoch: Callable[[], int],
        on_bound: Callable[[str], None],
        *,
        choice: BackendChoice,
        scratch: Scratch,
    ) -> None:
        """See Attachment. `scratch` holds SCRATCH_PAGES pages of the layout, where the engine's pages lie."""
        self.result = GoldenResult.NOT_RUN
        self._scratch = scratch
        self._seconds = settings.call_seconds
        super().__init__(settings, place, layout, facts, timeline, previous, epoch, on_bound, choice=choice)

    @property
    def proven(self) -> bool:
        """Return whether bytes came back through this attachment as they went."""
        return self.result is GoldenResult.PASSED

    def advance(self) -> bool:
        """Attach, then prove; return whether both are done. Waits for an arena at most the call deadline."""
        if not super().advance():
            return False
        if self.result is GoldenResult.NOT_RUN:
            scratch = self._scratch
            check = GoldenCheck(self.backend, scratch.layout, scratch, self._seconds, self.client, self.tell)
            self.result = check.run(0, 1)
            if self.result is GoldenResult.MISMATCH:
                log.error("a golden round trip brought back other bytes: no external hits with this Cache Manager")
        return self.result is not GoldenResult.NOT_RUN
