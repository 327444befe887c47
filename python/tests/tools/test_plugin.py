"""An engine finds the checkout's plugin by its entry point, as it would that of an installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.plugin import PROJECT, installed

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")


def test_the_entry_points_of_the_project_are_found_once(tmp_path: Path) -> None:
    folders = {installed(tmp_path), installed(tmp_path)}
    code = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='sglang.srt.plugins')])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "['orbitkv.sglang.plugin:register']"
    assert 'orbitkv = "orbitkv.sglang.plugin:register"' in PROJECT.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["orbitkv-0.dist-info"]
