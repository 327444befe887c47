"""What is asked of a real engine: the same prompts cold, from the device, and restored, in shapes that can be compared.

A restored answer must be the device hit's, token by token, and the counters of engine and Manager must say that every
page below the last token was restored and none was recomputed. Where requests share steps, a rounding that tips between
two tokens that are equally likely is told from wrong KV by computing both anew: wrong KV gives unlikely tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from demo.damage import invert_arenas

from harness.base import ManagerRig, words
from harness.manager import eventually
from qualify.offline import Answer, Counts
from qualify.report import Figures, Wrong

OUTPUT_TOKENS = 8
TIE = 1.0  # two tokens whose likelihoods (log) differ by less may change places by rounding; wrong ones lie 10 apart
TIES_MAX = 0.1  # of the prompts of a case
LIKELY_MIN = 0.99  # of the tokens of a case whose schedule nobody controls
CHANGED_MIN = 0.8  # of the prompts whose restored bytes were spoiled
JUDGED_MAX = 12  # answers that are computed anew in one case
SALTED = 1 << 20  # seeds above it are of the prompts of single cases
LOADED = "orbitkv_load_bytes_total"


class AskedEngine(Protocol):
    """What the rounds ask of an engine; see qualify.offline.Offline."""

    def ask(self, prompt: list[int], tokens: int, salt: str = "") -> Answer:
        """Complete one prompt while no other runs."""

    def ask_together(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> list[Answer]:
        """Complete prompts that all wait when the first of them is scheduled."""

    def enqueue(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> None:
        """Send prompts; the engine begins at once."""

    def wait(self) -> list[Answer]:
        """Return the answers of everything that was sent."""

    def gaps(self, prompt: list[int], tokens: Sequence[int]) -> list[float]:
        """Return how much likelier than each token the likeliest one is, computed without any cache."""

    def reset_device(self) -> bool:
        """Empty the engine's own prefix cache."""

    def counts(self) -> Counts:
        """Return the engine's counters."""

    def restores(self) -> tuple[int, int]:
        """Return how many restores there were, and how many of them no layer hook waited for."""


def lengths(count: int, low: int, high: int, page: int, seed: int) -> list[int]:
    """Return lengths of prompts: any, whole pages, and whole pages with one more token, which a hit leaves over."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        tokens = draw.randint(low, high)
        pages = max(1, tokens // page)
        found.append((tokens, pages * page, pages * page + 1, tokens)[number % 4])
    return found


@dataclass
class Rounds:
    """One engine with one Manager. `page` is in tokens, `pressed` says that prompts push one another off the device."""

    engine: AskedEngine
    rig: ManagerRig
    page: int
    pressed: bool = False
    _seeds: int = field(default=SALTED)

    def prompts(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return prompts that nobody had before."""
        self._seeds += len(sizes)
        return [words(self._seeds - number, size) for number, size in enumerate(sizes)]

    def restorable(self, prompts: Sequence[list[int]]) -> int:
        """Return how many tokens of the prompts can come from a cache: their last one is always computed."""
        return sum((len(prompt) - 1) // self.page * self.page for prompt in prompts)

    def forget(self) -> None:
        """Empty the device's cache."""
        eventually(self.engine.reset_device, "the engine's own cache is emptied: nobody holds a block")

    def page_bytes(self) -> int:
        """Return the bytes of a page, over all ranks."""
        ranks = self.rig.manager.status()["cache"]["instances"][0]["ranks"]
        return sum(int(each["slice_bytes"]) for each in ranks)

    def asking(self, prompt: list[int], tokens: int, salt: str = "") -> Callable[[], list[Answer]]:
        """Return what asks a prompt alone."""
        return lambda: [self.engine.ask(prompt, tokens, salt)]

    def stored(self, ask: Callable[[], list[Answer]], prompts: Sequence[list[int]]) -> list[Answer]:
        """Let prompts be answered that are new to the Manager; return once their pages are stored."""
        before = self.rig.inserted()
        answers = ask()
        self.rig.wait_inserted(before + sum(len(prompt) // self.page for prompt in prompts))
        return answers

    def counted(self, ask: Callable[[], list[Answer]], device: int, external: int, what: str) -> list[Answer]:
        """Let something be asked; the engine must take so many prompt tokens from each cache."""
        before = self.engine.counts()
        answers = ask()
        found = self.engine.counts().since(before)
        if (found.device, found.external) != (device, external):
            raise AssertionError(
                f"{what}: {found.device} tokens came from the device and {found.external} were restored, "
                f"not {device} and {external}"
            )
        return answers

    def single(self, prompts: Sequence[list[int]], faulty: bool = False) -> Figures:
        """Ask each prompt cold, as a device hit, and restored, while no other runs.

        `faulty` expects the opposite: restored bytes are spoiled, and most of the answers must show it.
        """
        colds, hits = [], []
        for prompt in prompts:
            colds += self.stored(self.asking(prompt, OUTPUT_TOKENS), [prompt])
            hits += self.counted(self.asking(prompt, OUTPUT_TOKENS), self.restorable([prompt]), 0, "device hit")
        if not self.pressed:
            self.forget()
        loaded, before = self.rig.manager.metric(LOADED), self.engine.counts()
        answers = []
        for prompt in prompts:
            answers += self.counted(self.asking(prompt, OUTPUT_TOKENS), 0, self.restorable([prompt]), "restore")
        self.rig.quiet()
        loaded = self.rig.manager.metric(LOADED) - loaded
        restored = self.restorable(prompts)
        self.require_bytes(loaded, restored)
        changed = [i for i, (one, other) in enumerate(zip(answers, hits, strict=True)) if one.tokens != other.tokens]
        figures = {
            "prompts": len(prompts),
            "restored_tokens": restored,
            "restored_bytes": int(loaded),
            "one_token_left": sum(len(prompt) % self.page == 1 for prompt in prompts),
            "cold_equals_hit": sum(cold.tokens == hit.tokens for cold, hit in zip(colds, hits, strict=True)),
            "changed": len(changed),
            "load_failures": self.engine.counts().since(before).load_failures,
        }
        if faulty:
            require(len(changed) >= CHANGED_MIN * len(prompts), f"spoiled bytes changed too few answers: {figures}")
        elif changed:
            raise Wrong(f"answers {changed[:10]} differ from the device hits': {figures}")
        return figures

    def require_bytes(self, loaded: float, tokens: int) -> None:
        """Raise when the Manager was told of other bytes than those of so many tokens."""
        expected = tokens // self.page * self.page_bytes()
        require(loaded == expected, f"the Manager counted {loaded:.0f} restored bytes, not {expected}")

    def together(self, prompts: Sequence[list[int]]) -> Figures:
        """Ask prompts in shared steps: cold, all from the device, all restored."""
        restored = self.restorable(prompts)
        self.stored(lambda: self.engine.ask_together(prompts, OUTPUT_TOKENS), prompts)
        hits = self.counted(lambda: self.engine.ask_together(prompts, OUTPUT_TOKENS), restored, 0, "device hits")
        self.forget()
        answers = self.counted(lambda: self.engine.ask_together(prompts, OUTPUT_TOKENS), 0, restored, "restores")
        self.rig.quiet()
        return {"prompts": len(prompts), "restored_tokens": restored, **self.equal(prompts, answers, hits)}

    def full_graph(self, count: int, pages: int, graphs: bool) -> Figures:
        """Restore prompts of which one token is left, alone and beside others that compute one token as well.

        With `graphs` such steps are replayed as one graph, in which no layer can wait; at least one must have been.
        """
        restores, unhooked = self.engine.restores()
        alone = self.prompts([pages * self.page + 1] * count)
        figures = self.single(alone)
        near, far = alone[: count // 2], alone[count // 2 :]
        self.forget()
        every = self.restorable(alone)
        self.counted(lambda: [self.engine.ask(prompt, 1) for prompt in alone], 0, every, "restores")
        hits = self.counted(lambda: self.engine.ask_together(alone, OUTPUT_TOKENS), every, 0, "device hits")
        self.forget()
        kept = self.restorable(near)
        self.counted(lambda: [self.engine.ask(prompt, 1) for prompt in near], 0, kept, "restores")
        answers = self.counted(
            lambda: self.engine.ask_together([*near, *far], OUTPUT_TOKENS), kept, every - kept, "half of each"
        )
        now = self.engine.restores()
        found = {"restores": now[0] - restores, "without_hooks": now[1] - unhooked}
        require(not graphs or found["without_hooks"] > 0, f"no restore was replayed in a full graph: {found}")
        return {**figures, **found, **self.equal(alone, answers, hits)}

    def joining(self, prompts: Sequence[list[int]], decoding: int, tokens: int) -> Figures:
        """Restore prompts while other requests decode, in whatever steps it happens."""
        restored = self.restorable(prompts)
        self.stored(lambda: [self.engine.ask(prompt, 1) for prompt in prompts], prompts)
        others = self.prompts([self.page // 2] * decoding)

        def ask() -> list[Answer]:
            self.engine.enqueue(others, tokens)
            self.engine.enqueue(prompts, OUTPUT_TOKENS)
            return self.engine.wait()

        self.forget()
        answers = self.counted(ask, 0, restored, "restores beside decoding requests")
        self.rig.quiet()
        sample = list(zip([*prompts, *others], [*answers[decoding:], *answers[:decoding]], strict=True))[:JUDGED_MAX]
        return {"prompts": len(prompts), "decoding": decoding, **self.likely(sample)}

    def chunked(self, prefix: int, suffix: int) -> Figures:
        """Restore a prefix whose request goes on for several steps of prefill; under two salts, both times anew."""
        (prompt,) = self.prompts([prefix + suffix])
        beginning = prompt[: prefix // self.page * self.page + 1]
        found = []
        for salt, restored in (("device", False), ("restored", True)):
            self.stored(self.asking(beginning, 1, salt), [beginning])
            if restored:
                self.forget()
            whole = self.restorable([beginning])
            places = (0, whole) if restored else (whole, 0)
            found += self.counted(self.asking(prompt, OUTPUT_TOKENS, salt), *places, salt)
        self.rig.quiet()
        return {"prefix": prefix, "suffix": suffix, **self.equal([prompt], found[1:], found[:1])}

    def preempted(self, device_tokens: int, prompt_tokens: int, output_tokens: int) -> Figures:
        """Decode more than the device holds, so that requests lose their blocks and come back."""
        count = max(4, int(1.4 * device_tokens / (prompt_tokens + output_tokens)))
        prompts = self.prompts([prompt_tokens + number for number in range(count)])
        self.forget()
        # vLLM counts no hit of a request that comes back, so the Manager says what was restored: the prompts are new.
        before, loaded = self.engine.counts(), self.rig.manager.metric(LOADED)
        answers = self.engine.ask_together(prompts, output_tokens)
        found = self.engine.counts().since(before)
        self.rig.quiet()
        loaded = self.rig.manager.metric(LOADED) - loaded
        require(all(len(answer.tokens) == output_tokens for answer in answers), "an answer is too short")
        require(found.preemptions > 0, "nothing was preempted, so the case shows nothing")
        figures = {"requests": count, "preemptions": found.preemptions, "restored_bytes": int(loaded)}
        require(loaded > 0, f"no preempted request was restored: {figures}")
        sample = list(zip(prompts, answers, strict=True))[-JUDGED_MAX:]  # The last to come are the first to go.
        return {**figures, **self.likely(sample)}

    def spoiled(self, prompts: Sequence[list[int]], verified: bool) -> Figures:
        """Invert everything that the Manager stores: answers must change, or with verification be computed anew."""
        colds = self.stored(lambda: [self.engine.ask(prompt, OUTPUT_TOKENS) for prompt in prompts], prompts)
        self.forget()
        before = self.engine.counts()
        inverted = invert_arenas(self.rig.manager.pid)
        try:
            answers = [self.engine.ask(prompt, OUTPUT_TOKENS) for prompt in prompts]
            self.rig.quiet()
        finally:
            invert_arenas(self.rig.manager.pid)
        self.forget()
        found = self.engine.counts().since(before)
        figures = {"prompts": len(prompts), "inverted_bytes": inverted, "load_failures": found.load_failures}
        require(found.external > 0, "nothing was restored, so the control shows nothing")
        if verified:
            require(found.load_failures > 0, "spoiled bytes were restored although they are verified")
            return {**figures, **self.equal(prompts, answers, colds)}
        changed = sum(one.tokens != other.tokens for one, other in zip(answers, colds, strict=True))
        require(changed >= CHANGED_MIN * len(prompts), f"{changed} of {len(prompts)} answers changed: {figures}")
        return {**figures, "changed": changed}

    def equal(self, prompts: Sequence[list[int]], answers: Sequence[Answer], right: Sequence[Answer]) -> Figures:
        """Compare answers with the right ones; Wrong when one differs by more than a tie, or too many are tied."""
        ties = 0
        for number, (prompt, answer, other) in enumerate(zip(prompts, answers, right, strict=True)):
            if answer.tokens == other.tokens:
                continue
            pairs = list(zip(answer.tokens, other.tokens, strict=True))
            at = next(place for place, (one, two) in enumerate(pairs) if one != two)
            gap = max(self.engine.gaps(prompt, each.tokens[: at + 1])[at] for each in (answer, other))
            if gap > TIE:
                raise Wrong(f"answer {number} differs from token {at} on, and not by rounding: {gap:.2f} apart")
            ties += 1
        if ties > TIES_MAX * len(prompts):
            raise Wrong(f"{ties} of {len(prompts)} answers differ in tokens that are equally likely: too many")
        return {"compared": len(prompts), "ties": ties}

    def likely(self, answers: Sequence[tuple[list[int], Answer]]) -> Figures:
        """Compute answers anew and look at each token; Wrong when too many are unlikely."""
        gaps = [gap for prompt, answer in answers for gap in self.engine.gaps(prompt, answer.tokens)]
        share = sum(gap <= TIE for gap in gaps) / len(gaps)
        if share < LIKELY_MIN:
            raise Wrong(f"{share:.1%} of {len(gaps)} tokens are likely when they are computed anew: too few")
        return {"judged_tokens": len(gaps), "likely": round(share, 4), "worst_gap": round(max(gaps), 3)}


def require(holds: bool, text: str) -> None:
    """Raise when something does not hold."""
    if not holds:
        raise AssertionError(text)
