"""At most one engine alive at a time: a small machine holds one, and a start costs minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

from harness.engine import Engine, EngineConfig
from harness.server import Server, ServerConfig

LOGS = Path(__file__).resolve().parents[2] / "build" / "engine-logs"

Config = TypeVar("Config", bound=ServerConfig)
Kind = TypeVar("Kind", bound=Server[Any])


class ServerPool(Generic[Config, Kind]):
    """Keeps the last engine running until another configuration is asked for, or until it died."""

    def __init__(self, kind: type[Kind], name: str) -> None:
        """Start servers of this kind; `name` begins the names of their logs."""
        self._kind = kind
        self._name = name
        self._engine: Kind | None = None
        self._started = 0

    def get(self, config: Config) -> Kind:
        """Return a healthy engine of this configuration. Tests of one configuration belong in one module."""
        if self._engine is not None and self._engine.config == config and self._engine.healthy():
            return self._engine
        self.close()
        self._started += 1
        self._engine = self._kind.start(config, LOGS / f"{self._name}-{self._started:02}.log")
        return self._engine

    def close(self) -> None:
        """End the engine, if any, and check that nothing of it is left."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()


class EnginePool(ServerPool[EngineConfig, Engine]):
    """The pool of vLLM."""

    def __init__(self) -> None:
        super().__init__(Engine, "engine")
