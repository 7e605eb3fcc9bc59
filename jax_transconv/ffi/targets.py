"""Loads the native modules and registers their handlers, without touching a device.

A module that was not built is absent, and the planner says so when asked. A module that
is there but broken raises. A module built against newer FFI headers than the installed
jaxlib understands raises too: registered all the same, it would later take the whole
backend down with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pathlib
import re
import types
from typing import Any

import jax
import numpy as np

from jax_transconv.spec import LAYOUTS, Spec

__all__ = [
    "PASSES",
    "PLATFORMS",
    "TARGETS",
    "algorithm_ids",
    "architectures",
    "module",
    "unsupported",
    "workspace_bytes",
]

PASSES = ("forward", "grad_input", "grad_weight")
TARGETS = {name: f"jax_transconv.{name}.v1" for name in PASSES}

# Module of each native backend, and XLA's name for its platform.
PLATFORMS = {"cpu": ("_cpu", "cpu"), "cuda": ("_cuda", "CUDA")}
_DTYPE_IDS = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}  # core/dtypes.h


def runtime_ffi_version() -> tuple[int, int]:
    """FFI version (major, minor) of the installed jaxlib, read from its own headers."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text()
    found = [
        re.search(rf"#define XLA_FFI_API_{p} (\d+)", text) for p in ("MAJOR", "MINOR")
    ]
    if not all(found):
        raise ImportError(
            f"jax_transconv: no FFI version in jaxlib's header {header.name}."
        )
    major, minor = (int(m.group(1)) for m in found if m)
    return major, minor


def check_ffi_version(
    name: str, built: tuple[int, int], runtime: tuple[int, int]
) -> None:
    """Refuses a module that the installed jaxlib would not understand.

    Raises:
        ImportError: if the module was built against newer headers.
    """
    if built[0] != runtime[0] or built[1] > runtime[1]:
        jaxlib = importlib.metadata.version("jaxlib")
        raise ImportError(
            f"jax_transconv: the module {name} was built for XLA FFI "
            f"{built[0]}.{built[1]}, but the installed jaxlib {jaxlib} understands "
            f"up to {runtime[0]}.{runtime[1]}.\n"
            "Resolution: upgrade jax and jaxlib, or reinstall jax-transconv so that it "
            "builds against the installed ones."
        )


def _load(name: str) -> types.ModuleType | None:
    full = f"{__package__}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        return None


def _load_all() -> dict[str, types.ModuleType]:
    modules = {}
    for backend, (name, platform) in PLATFORMS.items():
        loaded = _load(name)
        if loaded is None:
            continue
        check_ffi_version(name, tuple(loaded.built_against()), runtime_ffi_version())
        for target, capsule in loaded.registrations().items():
            jax.ffi.register_ffi_target(target, capsule, platform=platform)
        modules[backend] = loaded
    return modules


_MODULES = _load_all()


def module(backend: str) -> types.ModuleType | None:
    """The native module of a backend, or None if it was not built."""
    return _MODULES.get(backend)


def algorithm_ids() -> dict[str, int]:
    """Id of every algorithm of the built modules, by row name."""
    ids: dict[str, int] = {}
    for backend, loaded in _MODULES.items():
        ids |= {
            n: i for n, i in loaded.algorithms().items() if n.startswith(f"{backend}:")
        }
    return ids


def architectures() -> tuple[str, ...]:
    """What the CUDA module was compiled for, in CMake's words; () without a module."""
    loaded = _MODULES.get("cuda")
    if loaded is None:
        return ()
    return tuple(loaded.build_info()["architectures"].split())


def unsupported(row: str, pass_name: str, spec: Spec) -> str | None:
    """Why the kernel of a built row can't run a problem, in its own words, or None."""
    loaded = _MODULES.get(row.partition(":")[0])
    if loaded is None:
        return "its native module was not built"
    return loaded.unsupported(**_problem(row, pass_name, spec))


def workspace_bytes(row: str, pass_name: str, spec: Spec) -> int:
    """Scratch memory of one pass, as its launcher will use it."""
    loaded = _MODULES[row.partition(":")[0]]
    return loaded.workspace_bytes(**_problem(row, pass_name, spec))


def _problem(row: str, pass_name: str, spec: Spec) -> dict[str, Any]:
    g = spec.geometry
    sizes: dict[str, Any] = {
        "batch": spec.batch,
        "in_channels": spec.in_channels,
        "out_channels": spec.out_channels,
        "groups": g.groups,
    }
    for i, a in enumerate("hw"):
        sizes |= {
            f"in_{a}": spec.in_size[i],
            f"out_{a}": spec.out_size[i],
            f"kernel_{a}": spec.kernel_size[i],
            f"stride_{a}": g.stride[i],
            f"dilation_{a}": g.dilation[i],
            f"crop_lo_{a}": g.crop[i][0],
        }
    return {
        "pass": PASSES.index(pass_name),
        "algorithm": algorithm_ids()[row],
        **sizes,
        "layout": LAYOUTS.index(g.layout),
        "precision": int(g.precision),
        "dtype": _DTYPE_IDS[np.dtype(spec.dtype).name],
    }
