"""The end of a run: what was skipped and why, what failed, the time of each stage, and one closing line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.counting import Count
from runner.process import show


@dataclass
class Outcome:
    """What became of one stage."""

    name: str
    result: str  # "ok", "FAILED" or "not run".
    seconds: float
    count: Count = field(default_factory=Count)


def closing(outcomes: Sequence[Outcome]) -> bool:
    """Print the report and return whether everything passed. The last line stands alone and sums all stages."""
    for outcome in outcomes:
        for name, reason in outcome.count.skipped:
            show(f"skipped  {outcome.name}: {name}: {reason}")
    for outcome in outcomes:
        for name in outcome.count.failed:
            show(f"failed   {outcome.name}: {name}")
    show("")
    show(f"{'stage':<14} {'result':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>9}")
    for o in outcomes:
        count = o.count
        numbers = f"{count.passed:>7} {len(count.failed):>7} {len(count.skipped):>8} {o.seconds:>9.1f}"
        show(f"{o.name:<14} {o.result:<8} {numbers}")
    show(f"{'all stages':<46} {sum(o.seconds for o in outcomes):>9.1f}")
    show("")
    passed = sum(o.count.passed for o in outcomes)
    failed = sum(len(o.count.failed) for o in outcomes)
    skipped = sum(len(o.count.skipped) for o in outcomes)
    show(f"{passed} passed, {failed} failed, {skipped} skipped")
    return all(o.result == "ok" for o in outcomes)
