"""What the connector says of vLLM configurations, without an engine: facts or refusal, as JSON on stdout.

The argument is a JSON list. Each entry names a configuration: `arguments` of the engine, and where it differs from the
machine's own, the `layout` of the cache, the `release` of vLLM and the connector's `policy`. It is a process of its own
because vLLM changes the environment of the process that reads its configuration.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from orbitkv.errors import ConfigurationError
from orbitkv.vllm import engine
from orbitkv.vllm.connector import left_alone


def main() -> int:
    """Print one object for each entry."""
    print(json.dumps([describe(entry) for entry in json.loads(sys.argv[1])]))
    return 0


def describe(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one configuration, or why it is refused."""
    transfer = KVTransferConfig(
        kv_connector="OrbitKVConnector",
        kv_connector_module_path="orbitkv.vllm",
        kv_role="kv_both",
        kv_load_failure_policy=entry.get("policy", "recompute"),
    )
    own, vllm.__version__ = vllm.__version__, entry.get("release", vllm.__version__)
    try:
        config = EngineArgs(**entry["arguments"], kv_transfer_config=transfer).create_engine_config()
        engine.check_configuration(config)
        caches = SimpleNamespace(kv_cache_layout=entry.get("layout", "LBNHC"))
        layers: Any = SimpleNamespace(layout=SimpleNamespace(layers=[SimpleNamespace(name="layers.0")]), index={})
        return {"facts": engine.namespace_facts(config, caches, layers), "left_alone": who_is_left_alone()}
    except ConfigurationError as refusal:
        return {"refused": str(refusal)}
    finally:
        vllm.__version__ = own


def who_is_left_alone() -> dict[str, bool]:
    """Return for each kind of request whether the connector leaves it alone."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "salted": {"cache_salt": "salt"},
        "adapter": {"lora_request": LoRARequest("adapter", 1, "/adapter")},
    }
    return {name: left_alone(request(**options)) for name, options in kinds.items()}


def request(**options: Any) -> Any:
    """Return a request as vLLM's scheduler holds it."""
    return Request("r", [1, 2, 3], SamplingParams(max_tokens=1), None, **options)


if __name__ == "__main__":
    sys.exit(main())
