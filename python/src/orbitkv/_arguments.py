"""Checks of what a caller gave, made before anything is sent, so that the error names the argument."""

from __future__ import annotations

from orbitkv._wire import Writer
from orbitkv.errors import ConfigurationError


def expect(value: object, kind: type, name: str, expected: str) -> None:
    """Raise ConfigurationError unless `value` is of a type; a bool is no number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be {expected}, got {shown(value)}")


def check_timeout(timeout_ms: object) -> None:
    """Raise ConfigurationError unless a call could end within `timeout_ms`."""
    expected = "a whole number of milliseconds, at least 1"
    expect(timeout_ms, int, "timeout_ms", expected)
    if isinstance(timeout_ms, int) and timeout_ms < 1:
        raise ConfigurationError(f"timeout_ms must be {expected}, got {timeout_ms}")


def writer_of(writer: object) -> Writer:
    """Return the writer that is meant by itself or by its name in either case; ConfigurationError for any other."""
    named = writer.upper() if isinstance(writer, str) else writer
    for each in Writer:
        if each is named or each.name == named:
            return each
    names = ", ".join(repr(each.name.lower()) for each in Writer)
    raise ConfigurationError(f"writer must be a Writer or one of {names}, got {shown(writer)}")


def shown(value: object) -> str:
    """Return the start of a value's text with its type; a value may be long."""
    text = repr(value)
    return f"{text if len(text) <= 64 else text[:64] + '...'} ({type(value).__name__})"
