"""OrbitKV: an external KV cache for LLM inference. The client, the copy backends and the engine adapters."""

__version__ = "0.1.0"
