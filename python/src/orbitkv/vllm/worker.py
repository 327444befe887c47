"""The side in each of vLLM's workers: it copies, makes the forward wait layer by layer, and reports.

One step on the engine's worker thread:

    scheduling       `begin_restores`  submit the step's restores already, where the scheduler has this thread
    start_load_kv    `start`           submit them otherwise; may come after the forward in steps without any
    layer hooks      `wait_layer`      let the forward pass a layer once its bytes are there
    get_finished     `end_step`        what follows comes after every restored byte; submit the step's publishes
    ...              `load_errors`     blocks that must be recomputed
    ...              `report`          batches whose sources nobody reads any more

"Once" is the engine's stream on a device: the thread enqueues waits and goes on. On the host the thread itself waits.

A forward that replays a full CUDA graph runs no hooks. So whoever calls `start` says whether they will run: without
them the whole restore is waited for before the forward, and with them a restore of which a layer was passed without its
hook is a load error, since the forward may have read pages before their bytes.

`handle_preemptions` has nothing to do. A preempted request's blocks may be given away at once: sources of publishes are
held by references of the block pool (`publisher.py`), and what the next owner of a restore's destination launches comes
after every restored byte, by the `join` at the end of the step in which the restore was submitted.

Terminal results go to the Cache Manager from the thread that copied, at once; the engine's own way back (`report`)
only gives block references back, so that it works without a Manager.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.copies import Copies, refuse_start
from orbitkv.adapter.golden import GoldenResult, PageAccess
from orbitkv.adapter.link import Link
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.plans import PublishPlan, RestorePlan
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.errors import ConfigurationError, OrbitKVError
from orbitkv.timeline import Stage, Timeline
from orbitkv.transfer import DeviceSite, KVLayout, TransferBackend, is_verified
from orbitkv.vllm.early import Launches, Running, Submitted, unusable_blocks
from orbitkv.vllm.plans import GoldenLoan, StepPlan, StepReport

log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class EngineLayers:
    """The engine's registered tensors: layout, access by block, and the layer index of each of vLLM's layer names.

    `site` is where they lie when that is a device.
    """

    layout: KVLayout
    pages: PageAccess
    index: Mapping[str, int]
    site: DeviceSite | None = None


class WorkerSide:
    """See the module's text. `facts` are the namespace facts of this rank."""

    def __init__(
        self,
        settings: Settings,
        place: RankPlace,
        layers: EngineLayers,
        facts: Mapping[str, str],
        timeline: Timeline,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[Attachment | None], Attachment] | None = None,
    ) -> None:
        self._settings = settings
        self._place = place
        self._layers = layers
        self._facts = facts
        self._timeline = timeline
        self._clock = clock
        self.stats = Stats()
        self._choice = BackendChoice(settings, layers.layout, layers.site)
        self._backend: TransferBackend | None = None  # the one that something was submitted to last
        self._launches = Launches(layers.site)
        self._begun: Submitted | None = None  # of a step that has not started
        self._running: list[Running] = []
        self._hooks = False  # whether layers of the running restores are waited for one by one
        self._passed: set[int] = set()  # those layers that the forward came to
        self._hooked = len(set(layers.index.values()))  # how many layers have hooks
        self._verified = is_verified(layers.layout)
        self._errors: set[int] = set()
        self._lock = threading.Lock()  # guards _report, which copying threads and the golden thread fill
        self._report = StepReport()
        self._proven = b""
        self._epoch = 0
        self._link: Link[Attachment] = Link(f"worker {place.rank}", connect or self._connect)
        self._copies = Copies(settings, place, layers.layout, layers.pages, timeline, self.stats, clock)

    @property
    def proven(self) -> bytes:
        """Return the incarnation of the Manager with which the golden round trip passed at start."""
        return self._proven

    def begin(self) -> None:
        """Connect, attach and prove the tensors while every block is spare; ConfigurationError: see `refuse_start`."""
        self._link.start()
        self._prove()
        self._choice.serve()

    def _prove(self) -> None:
        attachment = self._link.session
        if attachment is None or not attachment.attached or self._layers.layout.blocks < 3:
            return
        # Block 0 is the engine's null block.
        result = self._copies.prove(attachment, 1, 2)
        try:
            refuse_start(result, attachment.client)
        except ConfigurationError:
            self._link.stop()
            raise
        if result is GoldenResult.PASSED:
            self._proven = attachment.incarnation

    def begin_restores(self, plan: StepPlan, *, rewritten: bool) -> None:
        """Submit the restores of a step that is planned but not launched, where they may begin; else `start` does.

        It is called for each step, before anything of it is launched. `rewritten` says whether the engine writes
        blocks itself between now and the step's forward, which would be over their restored bytes.
        """
        self._settle_begun()
        # A fence that is taken here covers the forwards so far only where they were launched from here, and the last
        # step's own restores only once that step was closed.
        if not plan.restores or rewritten or self._running or not self._launches.here:
            return
        self._begun = self._submit(plan)
        self.stats.count("load_early", len(self._begun.running))

    def start(self, plan: StepPlan, *, hooks: bool) -> None:
        """Submit the restores of this step as one group if they have not begun; those that cannot be are load errors.

        `hooks` says whether `wait_layer` will be called for every layer. Otherwise what the engine launches from here
        on comes after the restores as a whole.
        """
        self._epoch = plan.epoch
        self._errors.update(plan.lost)
        if self._begun is not None and self._begun.plan is not plan:
            self._settle_begun()
        if not plan.restores:
            self._launches.compare()
            return
        submitted, self._begun = self._begun, None
        if submitted is None:
            submitted = self._submit(plan)
        elif not self._launches.here:
            # The fence was taken elsewhere than where the engine launches: the bytes may come too early to last.
            for running in submitted.running:
                running.usable = False
        self._launches.note()
        self._running = submitted.running
        self._errors.update(submitted.errors)
        self._hooks = hooks
        self._passed.clear()
        if not hooks:
            self._join()

    def wait_layer(self, name: str) -> None:
        """Hold the forward until a layer's bytes are in place. It does nothing in a step without restores."""
        if not self._running or not self._hooks:
            return
        layer = self._layers.index.get(name)
        if layer is None:
            return
        self._launches.compare()
        first = layer not in self._passed
        self._passed.add(layer)
        if layer == self._settings.fault.skip_layer:
            return
        begin = self._clock()
        for running in self._running:
            # TransferStalled is not caught: the destination is unknown then, and only the engine's end is safe.
            running.usable = running.restore.wait_layer(layer) and running.usable
            self._timeline.record(Stage.LAYER_USED, running.plan.request, layer=layer)
            if first:  # Names that share a tensor come here again.
                self._copies.corrupt(layer, running.plan)
        self.stats.observe("layer_wait_seconds", self._clock() - begin)

    def end_step(self, plan: StepPlan) -> None:
        """Close the step's restores (I2), see that copies still move, then submit its publishes and golden check.

        TransferStalled and EngineFault are the engine's end: the content of its pages is unknown.
        """
        if self._running:
            self._close_restores()
        if self._backend is not None:
            self._backend.check()
        if not plan.publishes and plan.golden is None:
            return
        attachment = self._link.session_of(plan.incarnation)
        for publish in plan.publishes:
            self._publish(attachment, plan, publish)
        if plan.golden is not None:
            self._answer_loan(attachment, plan.golden)

    def load_errors(self) -> set[int]:
        """Return the blocks whose restore failed since the last call."""
        errors, self._errors = self._errors, set()
        return errors

    def report(self) -> StepReport:
        """Return what no longer needs the scheduler side's references since the last call."""
        with self._lock:
            report, self._report = self._report, StepReport()
        return report

    def close(self) -> None:
        """Let running copies end and detach."""
        self._link.stop()

    def _connect(self, previous: Attachment | None) -> Attachment:
        return Attachment(
            self._settings,
            self._place,
            self._layers.layout,
            self._facts,
            self._timeline,
            previous,
            lambda: self._epoch,
            self.stats.count,
            choice=self._choice,
        )

    def _submit(self, plan: StepPlan) -> Submitted:
        attachment = self._link.session_of(plan.incarnation)
        if attachment is None:
            self.stats.count("load_failure", len(plan.restores))
            return Submitted(plan, errors=refused_blocks(plan.restores, "its Cache Manager is gone"))
        try:
            restores = self._copies.restore(attachment, plan.slices, plan.restores)
        except OrbitKVError as fault:
            return Submitted(plan, errors=refused_blocks(plan.restores, str(fault)))
        self._backend = attachment.backend
        return Submitted(plan, [Running(each, restore) for each, restore in zip(plan.restores, restores, strict=True)])

    def _settle_begun(self) -> None:
        """Close restores that were begun for a step that never came, as at a step's end."""
        if self._begun is None:
            return
        self._running, self._hooks = self._begun.running, False
        self._errors.update(self._begun.errors)
        self._begun = None
        self._close_restores()

    def _join(self) -> None:
        """Let everything that the engine launches from here on come after every byte of the step's restores."""
        for running in self._running:
            running.usable = running.restore.join() and running.usable
            for layer in range(len(self._layers.layout.layers)):
                self._copies.corrupt(layer, running.plan)

    def _close_restores(self) -> None:
        """Order the restores' destinations before whatever comes next (I2), and name those that did not arrive."""
        missed = self._hooks and len(self._passed) < self._hooked
        for running in self._running:
            # I11: a request's blocks count as loaded only when every layer of every page arrived, and no forward
            # passed one before.
            arrived = running.restore.join() and running.usable
            self.stats.observe("restore_resume_seconds", running.restore.age_seconds)
            if self._verified:
                arrived = running.restore.wait_all() and arrived
            if missed:
                self.stats.count("load_unwaited")
                reason = f"its forward came to the waits of {len(self._passed)} of {self._hooked} layers"
                self._errors.update(refused_blocks([running.plan], reason))
            elif not arrived:
                self._errors.update(unusable_blocks(running).tolist())
        self._running = []

    def _publish(self, attachment: Attachment | None, plan: StepPlan, publish: PublishPlan) -> None:
        if attachment is None or not self._place.storage:
            self._let_go(publish.ticket)
            return
        self._backend = attachment.backend
        self._copies.publish(attachment, plan.slices, publish, lambda _: self._let_go(publish.ticket))

    def _let_go(self, ticket: int) -> None:
        with self._lock:
            self._report.copied[ticket] = self._report.copied.get(ticket, 0) + 1

    def _answer_loan(self, attachment: Attachment | None, loan: GoldenLoan) -> None:
        """Run the golden round trip beside the engine; its answer rides on a later step."""
        if attachment is None or not attachment.attached:
            self._golden_done(loan.loan, GoldenResult.NOT_RUN)
            return
        self._backend = attachment.backend

        def check() -> None:
            result = GoldenResult.NOT_RUN  # Also when the engine's own tensors raise: the loan must end.
            try:
                result = self._copies.prove(attachment, loan.source, loan.target)
            finally:
                self._golden_done(loan.loan, result)

        threading.Thread(target=check, name="orbitkv-golden", daemon=True).start()

    def _golden_done(self, loan: int, result: GoldenResult) -> None:
        with self._lock:
            self._report.golden[loan] = (1, result)


def refused_blocks(plans: Sequence[RestorePlan], reason: str) -> set[int]:
    """Say why restores are not used, and return their blocks."""
    blocks: set[int] = set()
    for plan in plans:
        log.warning(
            "restore of %d pages of request %s: %s; they are recomputed", len(plan.blocks), plan.request, reason
        )
        blocks.update(plan.blocks.tolist())
    return blocks
