"""Terminal reports of one rank, kept until the Cache Manager is known to have read them.

    told ──a ping after it was answered──► forgotten
      └─ the channel closed ──► claimed by the next session ──► told again, or forgotten when the Manager had read it

A report that was sent may be lost with its connection, and what it ends would stay begun or reserved for good. So the
reports outlive the session: a later one with the same life of the Manager claims what they name, which makes the second
telling an echo that the Manager expects.

Copying threads and the engine's thread tell, the link's thread claims, binds and confirms. Telling never waits.
`_lock` guards all state; nothing is sent under it.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orbitkv._wire import FRAME_IDS_MAX
from orbitkv.adapter.logs import LOGGER
from orbitkv.client import CacheManagerClient
from orbitkv.errors import ChannelClosed

OPEN_MAX = 65536  # reports that are kept; past it the oldest is forgotten, since the Manager has likely read it

log = logging.getLogger(LOGGER)


@dataclass
class Report:
    """One report about a lease or a reservation. `taken_by` is the client whose channel took it."""

    send: Callable[[CacheManagerClient], None]
    lease: int = 0
    reservation: int = 0
    taken_by: CacheManagerClient | None = None


@dataclass(frozen=True)
class Claim:
    """What the open reports name, for a resume, and which reports those are."""

    leases: Sequence[int]
    reservations: Sequence[int]
    numbers: Sequence[int]


class Reports:
    """See the module's text. Thread-safe."""

    def __init__(self, on_bound: Callable[[str], None] = lambda _: None) -> None:
        self._lock = threading.Lock()
        self._on_bound = on_bound
        self._numbers = itertools.count(1)
        self._open: dict[int, Report] = {}
        self._client: CacheManagerClient | None = None
        self.forgotten = 0  # reports dropped at OPEN_MAX

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, report: Report) -> None:
        """Send a report, or keep it for the next session when the channel is closed."""
        with self._lock:
            if len(self._open) >= OPEN_MAX:
                del self._open[next(iter(self._open))]
                self.forgotten += 1
                self._on_bound("reports_forgotten")
            self._open[next(self._numbers)] = report
            client, first = self._client, self.forgotten == 1
        if first:
            log.warning("%d reports wait to be confirmed by the Cache Manager; the oldest are forgotten", OPEN_MAX)
        if client is not None:
            send(report, client)

    def bind(self, client: CacheManagerClient) -> None:
        """Tell everything to the rank's new session, once it is the rank."""
        # A report is either in this list, or it is told later and finds the new client.
        with self._lock:
            self._client = client
            reports = list(self._open.values())
        for report in reports:
            send(report, client)

    def confirm(self) -> None:
        """Forget what the Manager has read. Waits for one answer at most; ChannelError when there is none."""
        with self._lock:
            client = self._client
            sent = [number for number, report in self._open.items() if report.taken_by is client]
        if client is None or not sent:
            return
        client.ping()
        self._forget(sent)

    def claim(self) -> Claim:
        """Return what a resume must name, so that the Manager takes what is told again as an echo."""
        with self._lock:
            reports = dict(self._open)
        leases = dict.fromkeys(report.lease for report in reports.values() if report.lease)
        reservations = dict.fromkeys(report.reservation for report in reports.values() if report.reservation)
        return Claim(list(leases)[-FRAME_IDS_MAX:], list(reservations)[-FRAME_IDS_MAX:], list(reports))

    def settle(self, claim: Claim, leases: Sequence[int], reservations: Sequence[int]) -> None:
        """Forget the claimed reports about what the Manager does not know any more: it has read them."""
        known_leases, known_reservations = set(leases), set(reservations)
        with self._lock:
            over = [
                number
                for number in claim.numbers
                if (report := self._open.get(number)) is not None
                and report.lease not in known_leases
                and report.reservation not in known_reservations
            ]
        self._forget(over)

    def _forget(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                self._open.pop(number, None)


def send(report: Report, client: CacheManagerClient) -> None:
    """Hand a report to a channel; a closed one leaves it for the next session."""
    try:
        report.send(client)
    except ChannelClosed:
        return
    report.taken_by = client
