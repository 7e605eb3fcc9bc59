"""Layers for Flax: `jax_transconv.nn.linen` and `jax_transconv.nn.nnx`.

Each is imported when it is first asked for, since Flax is optional.
"""

import importlib
from types import ModuleType

_LAYERS = ("linen", "nnx")


def __getattr__(name: str) -> ModuleType:
    if name in _LAYERS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_LAYERS]
