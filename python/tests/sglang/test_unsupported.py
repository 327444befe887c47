"""Engines that cannot have this backend say so in one line and do not start."""

from __future__ import annotations

import json

import pytest

from harness.pool import LOGS
from harness.server import EngineFailure
from harness.sglang import SglangEngine, SglangPool
from harness.sglang_rig import LAYERS, SglangRig

SLIDING = {"is_hybrid_swa": True, "sliding_window": 64, "hybrid_layer_pattern": [layer % 2 for layer in range(LAYERS)]}


def test_a_hybrid_model_is_refused_with_a_clear_line(rig: SglangRig, engines: SglangPool) -> None:
    engines.close()
    log = LOGS / "sglang-hybrid.log"
    with pytest.raises(EngineFailure, match="while starting"):
        SglangEngine.start(rig.config(arguments=("--json-model-override-args", json.dumps(SLIDING))), log)
    assert "the model has sliding-window layers, and full attention is supported" in log.read_text(errors="replace")
