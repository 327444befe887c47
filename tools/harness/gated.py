"""The product's connector with a gate in its copying threads: what an engine loads for tests that hold copies.

It is named in `kv_connector_module_path`. Nothing else differs from the product's own connector.
"""

from __future__ import annotations

from typing import Any

from harness.gate import pass_gate
from orbitkv.adapter import attachment
from orbitkv.transfer import HostBackend, TransferBackend
from orbitkv.vllm.connector import OrbitKVConnector

__all__ = ["OrbitKVConnector"]


def gated_backend(name: str, **options: Any) -> TransferBackend:
    """Return the host backend with the gate before each layer."""
    if name != "host":
        raise ValueError(f"only the host backend has a gate, not {name!r}")
    return HostBackend(before_layer=pass_gate, **options)


setattr(attachment, "make_backend", gated_backend)  # noqa: B010 - its type is the factory's, narrower than this one
