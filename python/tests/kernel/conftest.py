"""Kernels without a GPU: Triton's interpreter runs them, and a driver that does at once what it is told."""

from __future__ import annotations

import os

# Triton reads this when it is imported, and an engine's environment may import it before any fixture runs.
os.environ["TRITON_INTERPRET"] = "1"
