"""Switches from the environment.

TRANSCONV_LOG=plan          print each chosen plan once, to standard error
TRANSCONV_DISABLE=row,row   rows that the planner must not choose, to bisect a fault
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["disabled_rows", "log_plan"]

_LOGGED: set[Any] = set()


def disabled_rows() -> frozenset[str]:
    """Rows that TRANSCONV_DISABLE names."""
    words = os.environ.get("TRANSCONV_DISABLE", "").split(",")
    return frozenset(w.strip() for w in words if w.strip())


def log_plan(plan: Any, spec: Any) -> None:
    """Prints a plan the first time that it is made, if TRANSCONV_LOG asks for it."""
    if "plan" not in os.environ.get("TRANSCONV_LOG", "").split(","):
        return
    if (plan, spec) not in _LOGGED:
        _LOGGED.add((plan, spec))
        print(f"transconv {spec}\n{plan}", file=sys.stderr)
