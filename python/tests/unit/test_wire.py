"""The Python codec against the golden frames and against seeded damage."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from orbitkv import _wire

GOLDEN = Path(__file__).resolve().parents[3] / "internal" / "wire" / "testdata" / "golden"
FRAMES = sorted(GOLDEN.glob("*.bin"))


def plain(value: Any) -> Any:
    """Turn a decoded field into the form of the golden JSON."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def test_every_message_has_golden_frames() -> None:
    names = {path.name.split(".")[0] for path in FRAMES}
    assert len(names) == len(_wire._DECODERS)


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_golden_frames_decode_to_their_fields_and_encode_back(path: Path) -> None:
    frame = path.read_bytes()
    want = json.loads(path.with_suffix(".json").read_text())
    assert _wire.frame_bytes(frame[: _wire.HEADER_BYTES]) == len(frame)
    request_id, message = _wire.decode(memoryview(frame))
    assert request_id == want["id"]
    assert {name: plain(value) for name, value in message._asdict().items()} == want["fields"]
    assert _wire.encode(message, request_id) == frame


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_cut_and_trailing_bytes_are_refused(path: Path) -> None:
    frame = path.read_bytes()
    for cut in range(len(frame)):
        with pytest.raises(_wire.ProtocolError):
            _wire.decode(frame[:cut])
        if cut >= _wire.HEADER_BYTES:  # the same cut with a length that agrees
            with pytest.raises(_wire.ProtocolError):
                _wire.decode(struct.pack("<I", cut) + frame[4:cut])
    with pytest.raises(_wire.ProtocolError):
        _wire.decode(struct.pack("<I", len(frame) + 1) + frame[4:] + b"\0")


def test_seeded_damage_raises_nothing_but_protocol_error() -> None:
    frames = [path.read_bytes() for path in FRAMES]
    rng = random.Random(5)
    decoded = refused = 0
    for _ in range(20_000):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(frame))
            action = rng.randrange(4)
            if action == 0:
                frame[at] = rng.randrange(256)
            elif action == 1:
                frame[at] ^= 1 << rng.randrange(8)
            elif action == 2:
                frame[at:at] = rng.randbytes(rng.randint(1, 8))
            elif len(frame) > 1:
                del frame[at]
        if rng.random() < 0.7:
            frame[:4] = struct.pack("<I", len(frame))
        try:
            request_id, message = _wire.decode(frame)
        except _wire.ProtocolError:
            refused += 1
            continue
        decoded += 1
        assert _wire.decode(_wire.encode(message, request_id)) == (request_id, message)
    assert decoded > 100
    assert refused > 100


def test_garbage_is_refused() -> None:
    rng = random.Random(6)
    for kind in _wire._DECODERS:
        for _ in range(200):
            body = rng.randbytes(rng.randint(0, 80))
            frame = struct.pack("<IHHQ", 16 + len(body), kind, 0, 0) + body
            try:
                _wire.decode(frame)
            except _wire.ProtocolError:
                continue


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[]", b'{"a":1}', b'{"a":null}', b"\xff{}", b"[" * 30_000, b'{"a":"b"'],
    ids=["empty", "null", "list", "number", "null value", "not utf-8", "deep", "cut"],
)
def test_facts_are_an_object_of_strings(raw: bytes) -> None:
    frame = bytearray((GOLDEN / "attach.empty.bin").read_bytes())
    assert frame.endswith(struct.pack("<I", 2) + b"{}")
    frame[-6:] = struct.pack("<I", len(raw)) + raw
    frame[:4] = struct.pack("<I", len(frame))
    with pytest.raises(_wire.ProtocolError, match="facts"):
        _wire.decode(frame)


@pytest.mark.parametrize("facts", [{"a": 1}, {1: "a"}, {"a": None}, ["a"], None])
def test_facts_that_are_no_strings_are_not_encoded(facts: object) -> None:
    """A number would be refused by the peer, and a name that is none would silently become another text."""
    with pytest.raises(_wire.ProtocolError, match="facts must map strings to strings, got"):
        _wire.encode(_wire.Attach("i", 0, 1, True, 64, -1, _wire.Writer.HOST, "host", 0, facts), 1)  # type: ignore[arg-type]


def test_a_string_that_is_none_is_named() -> None:
    with pytest.raises(_wire.ProtocolError, match="instance must be a string, got int"):
        _wire.encode(_wire.Detach(7), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        _wire.Hello(_wire.ABI, _wire.Role.TOOL, "x" * 513),
        _wire.Hello(70_000, _wire.Role.TOOL, ""),
        _wire.Hello(_wire.ABI, _wire.Role.TOOL, "\ud800"),
        _wire.Error(_wire.Status.BUSY, "x" * 4097),
        _wire.Query(1, 1, 0, 1, 0, 0, "", "", bytes(33)),
        _wire.Query(1, 1, 0, 1, 0, 0, "", "", bytes(32 * 1985)),
        _wire.Resume(bytes(15), [], []),
        _wire.Resume(bytes(16), [0] * 3969, []),
        _wire.Restored(1, 0, True, 0, [(0, 1)] * 7937),
        _wire.Restored(1, 0, True, 0, [(-1, 1)]),
        _wire.Reserved(1, 1, 0, 1, 0, 0, [(1, 1)] * 1984, [(0, 1, 0)] * 3968),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_breaks_a_bound_is_not_encoded(message: _wire.Message) -> None:
    with pytest.raises(_wire.ProtocolError):
        _wire.encode(message, 1)
