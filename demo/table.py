"""The table that the demo ends with."""

from __future__ import annotations

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table. The first and the last column are text, the others are numbers."""
    widths = [max(len(line[at]) for line in (header, *rows)) for at in range(len(header))]
    last = len(header) - 1

    def line(cells: Sequence[str]) -> str:
        parts = (
            c.ljust(w) if at in (0, last) else c.rjust(w) for at, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    return "\n".join((line(header), "  ".join("-" * w for w in widths), *(line(row) for row in rows)))


def milliseconds(seconds: float) -> str:
    """Return a time the way the table shows it."""
    return f"{seconds * 1000:,.0f} ms"


def mebibytes(count: int) -> str:
    """Return a size the way the table shows it."""
    return f"{count / (1 << 20):.1f} MiB"
