"""The pages of reference that no generator writes, against the code; the adapters are read, not imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from orbitkv.adapter.stats import COUNTERS, GAUGES, HELP, HISTOGRAMS

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "src" / "orbitkv"
ENGINES = ("vllm", "sglang")
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| (.*) \|$", re.MULTILINE)


def constant(module: str, name: str) -> Any:
    for node in ast.parse((PACKAGE / module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} defines no {name}")


def test_the_page_of_engine_metrics_is_the_table() -> None:
    kinds = dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram") | dict.fromkeys(GAUGES, "gauge")
    want = {
        f"orbitkv_{name}" + ("_total" if kinds[name] == "counter" else ""): (kinds[name], text)
        for name, text in HELP.items()
    }
    page = (ROOT / "docs" / "reference" / "engine-metrics.md").read_text(encoding="utf-8")
    assert {name: (kind, text) for name, kind, text in ROW.findall(page)} == want
    assert kinds.keys() == HELP.keys()


def test_the_page_of_engine_metrics_names_both_prefixes() -> None:
    page = (ROOT / "docs" / "reference" / "engine-metrics.md").read_text(encoding="utf-8")
    for engine in ENGINES:
        prefix = constant(f"{engine}/metrics.py", "PREFIX")
        assert prefix == f"{engine}:orbitkv_"
        assert f"`{engine}:`" in page
