"""Every error that OrbitKV raises. Each says what happened, to which thing, and what to do.

OrbitKVError
├── ConfigurationError      a setting that cannot work: the remedy is in the text
├── BinaryNotFound          no `orbitkv` executable; lists every place looked at
├── ManagerUnavailable      no Cache Manager answered; lists every path tried
├── ChannelError            the channel to the Cache Manager
│   ├── ChannelClosed       it is closed: make a new client (`CacheManagerClient.resume`)
│   ├── ChannelFull         a bounded queue or table of the channel is full; nothing was sent
│   ├── CallTimeout         no answer within the call's deadline; a late answer is dropped
│   └── ProtocolError       the peer sent what ABI 5 does not allow; the channel closes
├── Refused                 the Cache Manager answered no: `.status` and `.text`
├── LeaseLost               the lease was revoked or released before it was begun
├── ArenaError              an arena could not be mapped or is not mapped
└── TransferError           a copy was refused before a byte moved
    └── TransferStalled     a copy did not end within its bound; its destination is unknown
"""

from __future__ import annotations

from collections.abc import Sequence


class OrbitKVError(Exception):
    """Base of every error of this package."""


class ConfigurationError(OrbitKVError):
    """A setting or an argument that cannot work; the text names it and what is expected."""


class BinaryNotFound(OrbitKVError):
    """The `orbitkv` executable was found nowhere; `looked_at` lists the places in order."""

    def __init__(self, looked_at: Sequence[str]) -> None:
        self.looked_at = tuple(looked_at)
        places = "\n  ".join(self.looked_at)
        super().__init__(
            f"no `orbitkv` executable. Looked at, in order:\n  {places}\n"
            "Install the wheel that carries it, run `make build` in a checkout, or name it in ORBITKV_BINARY."
        )


class ManagerUnavailable(OrbitKVError):
    """No Cache Manager answered; `tried` pairs each socket path with the reason."""

    def __init__(self, tried: Sequence[tuple[str, str]]) -> None:
        self.tried = tuple(tried)
        places = "; ".join(f"{path} ({reason})" for path, reason in self.tried)
        super().__init__(
            f"no Cache Manager answered. Tried: {places}. Start one with `orbitkv serve`, "
            "or name its socket in orbitkv.socket or ORBITKV_SOCKET."
        )


class ChannelError(OrbitKVError):
    """Base of the faults of the channel to the Cache Manager."""


class ChannelClosed(ChannelError):
    """The channel is closed; the text gives the first reason. The owner makes a new client."""


class ChannelFull(ChannelError):
    """A bounded queue or table of the channel is full, so nothing was sent; the text names the bound."""


class CallTimeout(ChannelError):
    """No answer came within the call's deadline. The channel stays open and a late answer is dropped."""


class ProtocolError(ChannelError):
    """A frame that ABI 5 does not allow; the channel that carried it closes."""


class Refused(OrbitKVError):
    """The Cache Manager answered no. `status` is a number of `Status`, `text` its explanation."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        name = getattr(status, "name", str(int(status))).lower()
        super().__init__(f"the Cache Manager refused ({name}): {text}")


class LeaseLost(OrbitKVError):
    """The lease was revoked or released before it was begun; its pages may not be read."""


class ArenaError(OrbitKVError):
    """An arena could not be mapped, or a location names one that is not mapped."""


class TransferError(OrbitKVError):
    """A copy was refused before a byte moved: a bound or a range that the text names."""


class TransferStalled(TransferError):
    """A copy did not end within its bound. Its destination is unknown, so the engine must stop using it."""


class EngineFault(OrbitKVError):
    """The content of engine pages is unknown and the engine cannot recompute it: it must end. The text says why."""


class DeviceError(TransferError):
    """A call of CUDA's driver failed: `call` is its name, `code` what it returned; the text names the error."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call} failed: {text} ({code})")
