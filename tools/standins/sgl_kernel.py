"""Stands in for SGLang's kernel package, which has no build for a CPU among published packages.

SGLang imports names from it when it runs on a CPU, for speculative decoding and vision models; the dense models of the
tests call none of them. So every name is there, and a call raises. This folder comes first on the PYTHONPATH of an
engine; no installed package is hidden by it, since the environment has none of this name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} was called, and the environment has no SGLang kernels for a CPU: "
            "run a dense model without speculative decoding, with attention_backend torch_native"
        )

    refuse.__name__ = name
    return refuse
