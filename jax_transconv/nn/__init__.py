"""Layers for Flax (`linen`, `nnx`), Equinox (`equinox`) and Haiku (`haiku`).

Each module is imported when it is first asked for, since the packages are optional.
"""

import importlib
from types import ModuleType

_LAYERS = ("equinox", "haiku", "linen", "nnx")


def __getattr__(name: str) -> ModuleType:
    if name in _LAYERS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_LAYERS]
