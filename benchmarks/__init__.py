"""Benchmarks: our rows beside their peers, with device times, floors and checks."""

import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _prefer_installed() -> None:
    """Puts a checkout without built modules behind the installed package.

    `python -m` puts the checkout first on the path, where it would shadow the installed
    package: the native rows would be gone, and only the XLA rows would be measured.
    """
    if any((_ROOT / "jax_transconv" / "ffi").glob("_*.so")):
        return
    own = [p for p in sys.path if pathlib.Path(p or ".").resolve() == _ROOT]
    if own:
        sys.path[:] = [p for p in sys.path if p not in own] + [str(_ROOT)]


_prefer_installed()
