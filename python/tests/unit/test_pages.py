"""The pages of reference that no generator writes, against the code; the adapter is read, not imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ADAPTER = ROOT / "python" / "src" / "orbitkv" / "vllm"
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| (.*) \|$", re.MULTILINE)


def constant(module: str, name: str) -> Any:
    for node in ast.parse((ADAPTER / module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} defines no {name}")


def test_the_page_of_engine_metrics_is_the_table() -> None:
    kinds = dict.fromkeys(constant("stats.py", "COUNTERS"), "counter")
    kinds |= dict.fromkeys(constant("stats.py", "HISTOGRAMS"), "histogram")
    kinds |= dict.fromkeys(constant("stats.py", "GAUGES"), "gauge")
    prefix = constant("metrics.py", "PREFIX")
    want = {
        prefix + name + ("_total" if kinds[name] == "counter" else ""): (kinds[name], text)
        for name, text in constant("metrics.py", "HELP").items()
    }
    page = (ROOT / "docs" / "reference" / "engine-metrics.md").read_text(encoding="utf-8")
    assert {name: (kind, text) for name, kind, text in ROW.findall(page)} == want
    assert kinds.keys() == constant("metrics.py", "HELP").keys()
