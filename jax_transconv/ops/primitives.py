"""forward, grad_input and grad_weight: three bilinear primitives.

They are closed under differentiation, each one's derivatives being the other two:

    forward(x, w[, b])            y  = sum over taps of x w, plus b
    grad_input(dy, w)             dx = transpose of forward in x, applied to dy
    grad_weight(x, dy)            dw = transpose of forward in w, applied to dy
                                  db = sum of dy, in the same pass, if `bias` is set

Parameters: `geometry` (`jax_transconv.spec.Geometry`), `backend` (what the caller asked
for), for grad_weight `bias`, and `partition` (`jax_transconv.ops.sharding.request`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.sharding import NamedSharding, PartitionSpec

from jax_transconv.ops import sharding
from jax_transconv.spec import Geometry, Spec

__all__ = [
    "forward",
    "forward_p",
    "grad_input",
    "grad_input_p",
    "grad_weight",
    "grad_weight_p",
]

forward_p = jex.Primitive("conv_transpose2d_forward")
grad_input_p = jex.Primitive("conv_transpose2d_grad_input")
grad_weight_p = jex.Primitive("conv_transpose2d_grad_weight")
grad_weight_p.multiple_results = True


def _bind(primitive: Any, *operands: Any, **params: Any) -> Any:
    operands = sharding.vary_alike(operands)
    return primitive.bind(*operands, **params, partition=sharding.request())


def forward(x: Any, w: Any, b: Any, geometry: Geometry, backend: str) -> Any:
    """Binds the forward pass; `b` may be None."""
    operands = (x, w) if b is None else (x, w, b)
    return _bind(forward_p, *operands, geometry=geometry, backend=backend)


def grad_input(dy: Any, w: Any, geometry: Geometry, backend: str) -> Any:
    """Binds the gradient of x."""
    return _bind(grad_input_p, dy, w, geometry=geometry, backend=backend)


def grad_weight(
    x: Any, dy: Any, geometry: Geometry, backend: str, *, bias: bool
) -> list[Any]:
    """Binds the gradient of the weight; returns [dw] or [dw, db]."""
    return _bind(grad_weight_p, x, dy, geometry=geometry, backend=backend, bias=bias)


def _result(shape: tuple, like: Any) -> ShapedArray:
    """An array of another shape that varies over the manual axes of an operand."""
    replicated = PartitionSpec(*(None,) * len(shape))
    return ShapedArray(
        shape,
        like.dtype,
        sharding=NamedSharding(like.sharding.mesh, replicated),
        manual_axis_type=like.manual_axis_type,
    )


def _forward_abstract(
    x: Any, w: Any, *b: Any, geometry: Geometry, backend: str, partition: Any
) -> Any:
    del b, backend, partition
    return _result(Spec.of_forward(geometry, x, w).y_shape, x)


def _grad_input_abstract(
    dy: Any, w: Any, *, geometry: Geometry, backend: str, partition: Any
) -> Any:
    del backend, partition
    return _result(Spec.of_grad_input(geometry, dy, w).x_shape, dy)


def _grad_weight_abstract(
    x: Any, dy: Any, *, geometry: Geometry, backend: str, bias: bool, partition: Any
) -> list[Any]:
    del backend, partition
    spec = Spec.of_grad_weight(geometry, x, dy)
    shapes = [spec.w_shape, (spec.out_channels,)]
    return [_result(shape, x) for shape in shapes[: 1 + bias]]


forward_p.def_abstract_eval(_forward_abstract)
grad_input_p.def_abstract_eval(_grad_input_abstract)
grad_weight_p.def_abstract_eval(_grad_weight_abstract)


def _check_numbers(primitive: Any, out: Any) -> None:
    """Raises as JAX does where a caller has asked to be told of nan or inf."""
    for name, is_bad in (("nan", jnp.isnan), ("inf", jnp.isinf)):
        if getattr(jax.config, f"jax_debug_{name}s") and any(
            bool(is_bad(a).any()) for a in jax.tree.leaves(out)
        ):
            raise FloatingPointError(
                f"invalid value ({name}) encountered in {primitive.name}"
            )


def _run_compiled(primitive: Any) -> Any:
    """Outside jit, a primitive runs as a small compiled program of its own."""

    @functools.cache
    def compiled(items: tuple[tuple[str, Any], ...]) -> Any:
        return jax.jit(lambda *operands: primitive.bind(*operands, **dict(items)))

    def run(*operands: Any, **params: Any) -> Any:
        # Under jax.disable_jit, or to find a nan, JAX would run the program below
        # operation by operation: it would only bind the primitive again.
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            out = compiled(tuple(sorted(params.items())))(*operands)
        _check_numbers(primitive, out)
        return out

    return run


for _primitive in (forward_p, grad_input_p, grad_weight_p):
    _primitive.def_impl(_run_compiled(_primitive))
