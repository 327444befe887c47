"""The adapter's settings: the engine's extra configuration first, then the environment, then the default.

vLLM hands the extra configuration over (`kv_connector_extra_config`); SGLang has none, so it is one JSON file that
ORBITKV_CONFIG names. Names, defaults and bounds are rows of the product's one table of configuration keys.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitkv import _config
from orbitkv.adapter.faults import Fault, parse_fault
from orbitkv.adapter.logs import LOGGER
from orbitkv.errors import ConfigurationError
from orbitkv.transfer import BACKENDS

PREFIX = "orbitkv."
CONFIG_FILE = "ORBITKV_CONFIG"
TABLE = {key.connector: key for key in _config.KEYS if key.connector}
TRANSFER_BACKENDS = ("auto", *BACKENDS)  # "auto" is the one that a measurement at start prefers
VERIFY = ("", "gpu")  # nobody checks restored pages, or the device does
WAIT_WHILE_IT_PAYS = "pays"
WAIT_POLICIES = (WAIT_WHILE_IT_PAYS, "always")  # a request waits while that is faster than computing, or all its time
ALIKE = 0.85  # of two names, from which on one is taken for a misspelling of the other

log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class Settings:
    """Checked values of every key, in the units of the names; `seconds` properties convert."""

    socket: str | None
    timeout_ms: int
    query_wait_us: int
    load_wait_ms: int
    load_wait_policy: str
    transfer_backend: str
    verify: str
    host_copy_delay_us: int
    fault: Fault

    @property
    def call_seconds(self) -> float:
        """Return the call deadline: the longest that anything waits for an answer of the Cache Manager."""
        return self.timeout_ms / 1e3

    @property
    def query_wait_seconds(self) -> float:
        """Return how long one wait for a query's answer may be."""
        return self.query_wait_us / 1e6

    @property
    def load_wait_seconds(self) -> float:
        """Return how long one request waits for a prefix that is being staged."""
        return self.load_wait_ms / 1e3


def read_file(environment: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return the connector keys of the file that ORBITKV_CONFIG names, nothing when it names none.

    ConfigurationError when it cannot be read, is no JSON object, or holds anything but connector keys.
    """
    name = (os.environ if environment is None else environment).get(CONFIG_FILE, "")
    if not name:
        return {}
    try:
        values = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ConfigurationError(f"{CONFIG_FILE} names {name}, which cannot be used: {fault}") from fault
    if not isinstance(values, dict):
        raise ConfigurationError(
            f'{CONFIG_FILE} names {name}, which must hold one object of connector keys: {{"orbitkv.socket": "..."}}'
        )
    refuse_unknown(values, lambda _: True)
    return values


def refuse_unknown(extra: Mapping[str, Any], ours: Callable[[str], bool]) -> None:
    """Refuse the names among `ours` that are no connector keys, with the list of those that are."""
    unknown = sorted(name for name in extra if ours(name) and name not in TABLE)
    if unknown:
        raise ConfigurationError(
            f"unknown connector keys {', '.join(unknown)}; the keys are {', '.join(sorted(TABLE))}"
        )


def warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn of variables that look like ours and that nothing reads: they would be missed in silence."""
    for name in sorted(environment):
        if name.startswith("ORBITKV_") and name not in _config.VARIABLES:
            near = difflib.get_close_matches(name, _config.VARIABLES, 1, ALIKE)
            log.warning("nothing reads %s%s", name, f"; did you mean {near[0]}?" if near else "")


def read_settings(extra: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check every key. ConfigurationError names the key, its value and what it may be."""
    refuse_unknown(extra, lambda name: name.startswith(PREFIX))
    values = os.environ if environment is None else environment
    warn_of_misspelt(values)

    def text(name: str) -> str:
        key = TABLE[PREFIX + name]
        value = extra.get(key.connector, values.get(key.environment, key.default or ""))
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigurationError(f"{key.connector} is {value!r}; it must be text or a whole number")
        return str(value)

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

    def one_of(name: str, choices: Sequence[str]) -> str:
        value = text(name)
        if value not in choices:
            named = ", ".join(choice or "empty" for choice in choices)
            raise ConfigurationError(f"{PREFIX}{name} is {value!r}; it may be {named}")
        return value

    return Settings(
        socket=text("socket") or None,
        timeout_ms=number("timeout_ms"),
        query_wait_us=number("query_wait_us"),
        load_wait_ms=number("load_wait_ms"),
        load_wait_policy=one_of("load_wait_policy", WAIT_POLICIES),
        transfer_backend=one_of("transfer_backend", TRANSFER_BACKENDS),
        verify=one_of("verify", VERIFY),
        host_copy_delay_us=number("host_copy_delay_us"),
        fault=parse_fault(text("fault_injection")),
    )
