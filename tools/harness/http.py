"""Just enough HTTP for a loopback server: a whole answer, a stream of server-sent events, Prometheus samples."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ANSWER_LIMIT_S = 600.0  # A stuck server must fail a test, not hang it.


class HTTPFailure(Exception):
    """The server answered with another status than 200."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes

    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def get(port: int, path: str, limit_s: float = ANSWER_LIMIT_S) -> Answer:
    """Return what a loopback port answers to GET; OSError when it does not."""
    return _ask(port, "GET", path, None, limit_s)


def post(port: int, path: str, body: Any, limit_s: float = ANSWER_LIMIT_S, token: str = "") -> Answer:
    """Return what a loopback port answers to a POST of JSON, with a bearer token unless it is empty."""
    return _ask(port, "POST", path, body, limit_s, token)


def _ask(port: int, method: str, path: str, body: Any, limit_s: float, token: str = "") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except http.client.HTTPException as failure:
        raise ConnectionError(f"port {port} gave no whole answer to {method} {path}: {failure!r}") from failure
    finally:
        connection.close()


def stream(port: int, path: str, body: Any, limit_s: float = ANSWER_LIMIT_S) -> Iterator[dict[str, Any]]:
    """POST JSON and yield each server-sent event as it arrives, until the server says [DONE]."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise HTTPFailure(f"POST {path} was answered {response.status}: {response.read(4096)!r}")
        for line in response:
            data = line.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if data and line.startswith(b"data: "):
                yield json.loads(data)
        raise HTTPFailure(f"the stream of POST {path} ended without [DONE]")
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """Return the samples of a Prometheus text page, keyed by name and labels as printed."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            found[key] = float(value)
    return found
