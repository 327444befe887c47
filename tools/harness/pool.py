"""At most one engine alive at a time: a small machine holds one, and a start costs minutes."""

from __future__ import annotations

from pathlib import Path

from harness.engine import Engine, EngineConfig

LOGS = Path(__file__).resolve().parents[2] / "build" / "engine-logs"


class EnginePool:
    """Keeps the last engine running until another configuration is asked for, or until it died."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._started = 0

    def get(self, config: EngineConfig) -> Engine:
        """Return a healthy engine of this configuration. Tests of one configuration belong in one module."""
        if self._engine is not None and self._engine.config == config and self._engine.healthy():
            return self._engine
        self.close()
        self._started += 1
        self._engine = Engine.start(config, LOGS / f"engine-{self._started:02}.log")
        return self._engine

    def close(self) -> None:
        """End the engine, if any, and check that nothing of it is left."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()
