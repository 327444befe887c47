"""Import this before SGLang, in a test that asks SGLang's own classes in the test's process.

It sets what SGLang needs on a machine without a GPU, and imports the engine once without the warnings of its packages,
which are errors in tests.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path

import sglangcpu

WHOLE_ENGINE = "sglang.srt.managers.scheduler"


def prepare() -> None:
    """Set the environment and import the engine."""
    os.environ.update(sglangcpu.variables(Path(sys.prefix)))
    sys.path.insert(0, str(sglangcpu.STANDINS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(WHOLE_ENGINE)


prepare()
