"""The product's connector with a gate in its copying threads: what vLLM loads for tests that hold copies.

It is named in `kv_connector_module_path`. Nothing else differs from the product's own connector.
"""

from __future__ import annotations

from harness.gate import put_into_copies
from orbitkv.vllm.connector import OrbitKVConnector

__all__ = ["OrbitKVConnector"]

put_into_copies()
