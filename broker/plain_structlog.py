"""Imports structlog without rich, for modules that a process begins with.

Where rich is installed, structlog loads it to draw tracebacks, which no log of ours has. That takes a fifth of a broker's start.
"""

from __future__ import annotations

import sys
from typing import Any


def _import_structlog() -> None:
    modules: dict[str, Any] = sys.modules
    if "rich" in modules or "structlog" in modules:
        return
    modules["rich"] = None  # an import of it fails
    try:
        import structlog  # noqa: F401, PLC0415  # for the others
    finally:
        del modules["rich"]


_import_structlog()
