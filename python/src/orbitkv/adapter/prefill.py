"""How fast the engine computes prompts, as its own steps show it.

The rate is what waiting for a prefix is weighed against. It is the median of the last steps that computed a lot of a
prompt, each weighed by its tokens: a step that was held up, or that compiled something, moves it little. There is none
until some were seen. A step that restored pages says nothing, since it may have waited for them.
"""

from __future__ import annotations

from collections import deque

import numpy as np

STEP_TOKENS_MIN = 256  # a smaller step is mostly overhead, or decodes
STEPS_MAX = 15
STEPS_MIN = 3


class Prefill:
    """Measures it. For one thread; steps run one after the other, though several may be handed over at once."""

    def __init__(self, page_tokens: int) -> None:
        self.rate = 0.0  # tokens a second; zero until enough was seen
        self._page_tokens = page_tokens
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS_MAX)  # tokens a second, tokens
        self._last_end = 0.0

    def ended(self, begun: float, tokens: int, now: float) -> None:
        """Take a step that was handed over at `begun` and has ended now, in seconds of one clock.

        `tokens` are those that it computed, or zero where it says nothing.
        """
        seconds = now - max(begun, self._last_end)
        self._last_end = now
        if tokens < STEP_TOKENS_MIN or seconds <= 0:
            return
        self._steps.append((tokens / seconds, tokens))
        if len(self._steps) >= STEPS_MIN:
            self.rate = self._median()

    def seconds(self, pages: int) -> float | None:
        """Return how long the engine computes so many pages, None while nobody knows."""
        return pages * self._page_tokens / self.rate if self.rate else None

    def _median(self) -> float:
        steps = sorted(self._steps)
        below = np.cumsum([tokens for _, tokens in steps])
        return steps[int(np.searchsorted(below, below[-1] / 2))][0]
