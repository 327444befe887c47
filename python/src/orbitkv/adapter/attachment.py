"""A worker's session with one life of the Cache Manager: its channel, its copy backend and its attachment as a rank.

Everything that belongs to that life ends together: a new life gets a new attachment, and the old one is closed after
it, which lets copies that run finish from the mapping that outlives their Manager. The link's thread advances and
closes an attachment; the engine's worker thread submits copies; copying threads report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orbitkv._numa import NO_NODE
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.reports import Report, Reports
from orbitkv.adapter.settings import Settings
from orbitkv.client import Arena, CacheManagerClient, Role, Status
from orbitkv.errors import ChannelError, OrbitKVError, Refused
from orbitkv.timeline import Stage, Timeline
from orbitkv.transfer import KVLayout, Transfer, TransferBackend

log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class RankPlace:
    """A worker's place in its instance. Replicated content is stored by one rank: `storage` says whether by this one.

    `slice_rank` is the storage rank whose slice this worker restores from. `numa` is the node of its KV memory, or
    the one next to the device that holds it, -1 for none in particular, the same for the life of the process: the
    ranks' nodes decide how a page is laid out.
    """

    instance: str
    rank: int
    world: int
    storage: bool = True
    slice_rank: int = 0
    numa: int = NO_NODE


class Attachment:
    """See the module's text."""

    def __init__(
        self,
        settings: Settings,
        place: RankPlace,
        layout: KVLayout,
        facts: Mapping[str, str],
        timeline: Timeline,
        previous: Attachment | None = None,
        epoch: Callable[[], int] = lambda: 0,
        on_bound: Callable[[str], None] = lambda _: None,
        *,
        choice: BackendChoice,
    ) -> None:
        """Connect. ManagerUnavailable, Refused and ConfigurationError say why not.

        `choice` is the rank's backend, the same in every session.
        `epoch` returns the instance's, which a Manager that has lived on expects to hear; a new one starts with zero
        and is moved by the scheduler side. It is read at each attempt to attach: a step may bring it in between.
        `on_bound` counts the bounds of the client and of the reports that bite, by name.
        """
        self._place = place
        self._layout = layout
        self._facts = facts
        self._timeline = timeline
        self._attached = False
        self._reports = Reports(on_bound)
        self._writer = choice.writer
        # First, since it is tried each second while there is no Manager. Arenas come once this rank is attached.
        self.client = CacheManagerClient(
            settings.socket,
            role=Role.WORKER,
            name=f"worker {place.rank} of {place.instance}",
            timeout_ms=settings.timeout_ms,
            on_arena=self._register_arena,
            on_bound=on_bound,
        )
        try:
            self.backend: TransferBackend = choice.make(self._note_layer if timeline.enabled else None)
        except OrbitKVError:
            self.client.close()
            raise
        self._epoch: Callable[[], int] = lambda: 0
        if previous is not None and previous.incarnation == self.incarnation:
            self._epoch = epoch
            try:
                self._take_over(previous)
            except OrbitKVError:
                self.close()
                raise

    @property
    def incarnation(self) -> bytes:
        """Return the life of the Manager that this attachment is with."""
        return bytes(self.client.incarnation)

    @property
    def alive(self) -> bool:
        """Return whether the channel is open."""
        return self.client.alive

    @property
    def attached(self) -> bool:
        """Return whether the Manager took this rank into its instance."""
        return self._attached

    def advance(self) -> bool:
        """Attach. Refused with a conflict when the ranks do not agree: the text names the fact."""
        if self._attached:
            return self._confirm()
        place = self._place
        try:
            self.client.attach(
                place.instance,
                place.rank,
                place.world,
                slice_bytes=self._layout.slice_bytes if place.storage else 0,
                storage=place.storage,
                numa=place.numa,
                writer=self._writer,
                backend=self.backend.name,
                facts=self._facts,
                epoch=self._epoch(),
            )
        except Refused as refusal:
            if refusal.status in (Status.NOT_READY, Status.BUSY):
                return False
            raise
        self._attached = True
        self._reports.bind(self.client)
        return True

    def tell(self, report: Report) -> None:
        """Tell the Manager how something ended, in this session or in the next one with the same life of it."""
        self._reports.tell(report)

    def restored(self, lease: int, ok: bool, ranges: Sequence[tuple[int, int]]) -> None:
        """Report the end of a restore of these pages of a lease, from the thread that copied."""
        pages = sum(count for _, count in ranges)
        rank, copied = self._place.rank, pages * self._layout.slice_bytes if ok else 0
        self.tell(Report(lambda client: client.restored(lease, rank, ok, copied, ranges), lease=lease))

    def committed(self, reservation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Report that this rank's slices are complete in the arena."""
        rank = self._place.rank
        self.tell(Report(lambda client: client.committed(reservation, rank, ranges), reservation=reservation))

    def abandoned(self, reservation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Report that this rank's slices will not be written and that no copy into them runs."""
        rank = self._place.rank
        self.tell(Report(lambda client: client.abandoned(reservation, rank, ranges), reservation=reservation))

    def detach(self) -> None:
        """Let accepted restores and running copies end and be told, then leave. OrbitKVError when it cannot be said."""
        self._end_copies()
        if self._attached:
            self.client.detach(self._place.instance)

    def close(self) -> None:
        """Let accepted restores and running copies end (I3), then unmap and close the channel."""
        self._end_copies()
        self.client.close()

    def _end_copies(self) -> None:
        """Close the backend, which also ends the registration of an arena; those that wait are not begun."""
        self.client.stop_pushes()
        self.backend.close()

    def _register_arena(self, arena: Arena) -> None:
        self.backend.register_arena(arena)

    def _note_layer(self, transfer: Transfer, layer: int) -> None:
        if transfer.plan.request:  # A golden round trip belongs to no request.
            self._timeline.record(Stage.LAYER_READY, transfer.plan.request, layer=layer)

    def _confirm(self) -> bool:
        """Let the Manager confirm what was told; return whether it did. A closed channel is the link's to see."""
        try:
            self._reports.confirm()
        except ChannelError as fault:
            log.debug("reports are not confirmed yet: %s", fault)
            return False
        return True

    def _take_over(self, previous: Attachment) -> None:
        """Let the earlier session's copies end, claim its place, and keep what must be told again."""
        previous._end_copies()
        claim = previous._reports.claim()
        try:
            leases, reservations = self.client.resume_after(previous.client, claim.leases, claim.reservations)
        except Refused as refusal:
            log.info("the earlier session cannot be resumed: %s", refusal)
            return
        # Whoever still reports to the earlier session reaches this one, since they share the reports.
        self._reports = previous._reports
        self._reports.settle(claim, leases, reservations)
