"""The vLLM adapter: name this package in `kv_connector_module_path` and `OrbitKVConnector` in `kv_connector`.

    connector.py  the class that vLLM makes, once per role: a thin facade over the two sides
    scheduler.py  the side in vLLM's scheduler: which pages are restored and published
    worker.py     the side in each worker: copies, waits for layers, reports
    early.py      whether a restore may begin when its step is planned

Only `connector.py`, `engine.py`, `tensors.py` and `metrics.py` import vLLM or torch. The rest is plain Python over
small protocols, so that it is tested without an engine. The connector is imported on first use for the same reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitkv.vllm.connector import OrbitKVConnector

__all__ = ["OrbitKVConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector, and with it vLLM, when it is asked for."""
    if name != "OrbitKVConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orbitkv.vllm.connector import OrbitKVConnector

    return OrbitKVConnector
