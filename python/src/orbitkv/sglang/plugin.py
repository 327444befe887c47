"""The entry point: SGLang calls `register` in each of its processes, whether or not the backend is selected."""

from __future__ import annotations

from typing import Any

BACKEND = "orbitkv"


def register() -> None:
    """Make `--radix-cache-backend orbitkv` known. Nothing is wrapped, and only SGLang's registry is imported."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, create)


def create(ctx: Any) -> Any:
    """Return the radix cache of the process whose backend this is. ConfigurationError says why there can be none."""
    from orbitkv.sglang.probe import check_symbols

    check_symbols()  # before a module of the adapter imports a name that this release may lack
    from orbitkv.sglang.backend import create_cache

    return create_cache(ctx)
