"""The custom calls: the only place that builds one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transconv.ffi import targets
from jax_transconv.spec import Spec

__all__ = ["forward", "grad_input", "grad_weight"]


def _call(row: str, pass_name: str, spec: Spec, results: list, *operands: Any) -> list:
    """Binds one custom call; the scratch memory is its last result, dropped here."""
    algorithm = targets.algorithm_ids()[row]
    nbytes = targets.workspace_bytes(row, pass_name, spec)
    workspace = jax.ShapeDtypeStruct((nbytes,), jnp.uint8)
    call = jax.ffi.ffi_call(targets.TARGETS[pass_name], (*results, workspace))
    *out, _ = call(*operands, geometry=spec.to_attrs(), algorithm=np.int32(algorithm))
    return out


def forward(row: str, spec: Spec, x: Any, w: Any, b: Any = None) -> Any:
    """The forward pass; an absent bias travels as an empty one."""
    b = jnp.zeros((0,), spec.dtype) if b is None else b
    y = jax.ShapeDtypeStruct(spec.y_shape, spec.dtype)
    return _call(row, "forward", spec, [y], x, w, b)[0]


def grad_input(row: str, spec: Spec, dy: Any, w: Any) -> Any:
    """The gradient of x."""
    dx = jax.ShapeDtypeStruct(spec.x_shape, spec.dtype)
    return _call(row, "grad_input", spec, [dx], dy, w)[0]


def grad_weight(row: str, spec: Spec, x: Any, dy: Any, *, bias: bool) -> list[Any]:
    """The gradient of the weight and, if asked for, of the bias, in one call."""
    dw = jax.ShapeDtypeStruct(spec.w_shape, spec.dtype)
    db = jax.ShapeDtypeStruct((spec.out_channels if bias else 0,), spec.dtype)
    out = _call(row, "grad_weight", spec, [dw, db], x, dy)
    return out if bias else out[:1]
