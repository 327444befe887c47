"""The adapter's settings: `kv_connector_extra_config` first, then the environment, then the default.

Names, defaults and bounds are rows of the product's one table of configuration keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbitkv import _config
from orbitkv.adapter.faults import Fault, parse_fault
from orbitkv.errors import ConfigurationError

PREFIX = "orbitkv."
TABLE = {key.connector: key for key in _config.KEYS if key.connector}


@dataclass(frozen=True)
class Settings:
    """Checked values of every key, in the units of the names; `seconds` properties convert."""

    socket: str | None
    timeout_ms: int
    query_wait_us: int
    load_wait_ms: int
    transfer_backend: str
    host_copy_delay_us: int
    fault: Fault

    @property
    def call_seconds(self) -> float:
        """Return the call deadline: the longest that anything waits for an answer of the Cache Manager."""
        return self.timeout_ms / 1e3

    @property
    def load_wait_seconds(self) -> float:
        """Return how long one request waits for a prefix that is being staged."""
        return self.load_wait_ms / 1e3


def read_settings(extra: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check every key. ConfigurationError names the key, its value and what it may be."""
    unknown = sorted(name for name in extra if name.startswith(PREFIX) and name not in TABLE)
    if unknown:
        raise ConfigurationError(
            f"unknown connector keys {', '.join(unknown)}; the keys are {', '.join(sorted(TABLE))}"
        )
    values = os.environ if environment is None else environment

    def text(name: str) -> str:
        key = TABLE[PREFIX + name]
        return str(extra.get(key.connector, values.get(key.environment, key.default or "")))

    def number(name: str) -> int:
        key = TABLE[PREFIX + name]
        try:
            value = int(text(name))
        except ValueError:
            raise ConfigurationError(
                f"{key.connector} must be a whole number of {key.unit}, not {text(name)!r}"
            ) from None
        if not key.least <= value <= key.most:
            raise ConfigurationError(
                f"{key.connector} is {value} {key.unit}; it must be from {key.least} to {key.most}"
            )
        return value

    return Settings(
        socket=text("socket") or None,
        timeout_ms=number("timeout_ms"),
        query_wait_us=number("query_wait_us"),
        load_wait_ms=number("load_wait_ms"),
        transfer_backend=text("transfer_backend"),
        host_copy_delay_us=number("host_copy_delay_us"),
        fault=parse_fault(text("fault_injection")),
    )
