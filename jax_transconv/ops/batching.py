"""vmap: every mapped axis becomes part of the batch, of the channels or of the groups.

Never a loop. With only images mapped the axis joins the batch; with only the weight (or
one side of grad_weight) mapped it joins the channels of each group; with both sides
mapped it multiplies the groups.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from jax_transconv.ops.primitives import (
    forward,
    forward_p,
    grad_input,
    grad_input_p,
    grad_weight,
    grad_weight_p,
)
from jax_transconv.spec import Geometry, Spec

__all__: list[str] = []


def _size(args: Any, dims: Any) -> int:
    return next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)


def _front(a: Any, dim: Any) -> Any:
    return jnp.moveaxis(a, dim, 0)


def _into_batch(a: Any, dim: Any) -> Any:
    a = _front(a, dim)
    return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])


def _out_of_batch(a: Any, size: int) -> Any:
    return a.reshape(size, a.shape[0] // size, *a.shape[1:])


def _into_axis(a: Any, dim: int, axis: int, groups: int) -> Any:
    """Folds the mapped axis into `axis` of the unmapped array, inside each group."""
    a = jnp.moveaxis(a, dim, axis)  # (..., B, C, ...)
    size, channels = a.shape[axis], a.shape[axis + 1]
    before, after = a.shape[:axis], a.shape[axis + 2 :]
    a = a.reshape(*before, size, groups, channels // groups, *after)
    a = jnp.swapaxes(a, axis, axis + 1)
    return a.reshape(*before, groups * size * (channels // groups), *after)


def _out_of_axis(a: Any, size: int, axis: int, groups: int) -> Any:
    """Inverse of `_into_axis`, with the mapped axis in front."""
    before, after = a.shape[:axis], a.shape[axis + 1 :]
    each = a.shape[axis] // (groups * size)
    a = a.reshape(*before, groups, size, each, *after)
    a = jnp.moveaxis(a, axis + 1, 0)  # (B, ..., groups, each, ...)
    return a.reshape(size, *before, groups * each, *after)


def _forward_many_biases(
    x: Any, w: Any, b: Any, geometry: Geometry, backend: str, copies: int
) -> Any:
    """One product of `copies` stacked images, and a bias of shape (B, channels)."""
    dtype = x.dtype
    if dtype.itemsize == 2:  # round once, after the bias
        x, w, b = (a.astype(jnp.float32) for a in (x, w, b))
    y = _out_of_batch(forward(x, w, None, geometry, backend), copies)
    shape = [b.shape[0], 1, 1, 1, 1]
    shape[1 + geometry.channel_axis] = b.shape[1]
    return (y + b.reshape(shape)).astype(dtype)


def _forward_batch(
    args: Any, dims: Any, *, geometry: Geometry, backend: str, **_: Any
) -> Any:
    x, w, *rest = args
    dim_x, dim_w, *dim_rest = dims
    size = _size(args, dims)
    b = rest[0] if rest else None
    dim_b = dim_rest[0] if rest else None
    channel, groups = geometry.channel_axis, geometry.groups

    if dim_w is None:
        if size == 0:
            return _empty(x, dim_x, w, geometry), 0
        copies = 1 if dim_x is None else size
        x = x if dim_x is None else _into_batch(x, dim_x)
        if dim_b is None:
            return _out_of_batch(forward(x, w, b, geometry, backend), copies), 0
        b = _front(b, dim_b)
        return _forward_many_biases(x, w, b, geometry, backend, copies), 0
    if size == 0:
        return _empty(x, dim_x, w, geometry, dim_w), 0
    if b is not None:
        b = jnp.broadcast_to(b, (size, *b.shape)) if dim_b is None else _front(b, dim_b)
    if dim_x is None:
        w = _into_axis(w, dim_w, 1, 1)
        # Weights carry their group on axis 0, so the folded order of y is (g, B, each).
        b = None if b is None else _into_axis(b, 0, 0, groups)
        y = forward(x, w, b, geometry, backend)
        return _out_of_axis(y, size, channel, groups), 0
    x = _into_axis(x, dim_x, channel, 1)
    w = _into_batch(w, dim_w)
    b = None if b is None else b.reshape(-1)
    y = forward(x, w, b, geometry.with_groups(size * groups), backend)
    return _out_of_axis(y, size, channel, 1), 0


def _unmapped(a: Any, dim: int | None) -> Any:
    return a if dim is None else jnp.zeros(a.shape[:dim] + a.shape[dim + 1 :], a.dtype)


def _empty(x: Any, dim_x: Any, w: Any, geometry: Geometry, dim_w: Any = None) -> Any:
    spec = Spec.of_forward(geometry, _unmapped(x, dim_x), _unmapped(w, dim_w))
    return jnp.zeros((0, *spec.y_shape), spec.dtype)


def _grad_input_batch(
    args: Any, dims: Any, *, geometry: Geometry, backend: str, **_: Any
) -> Any:
    dy, w = args
    dim_dy, dim_w = dims
    size = _size(args, dims)
    if size == 0:
        spec = Spec.of_grad_input(geometry, _unmapped(dy, dim_dy), _unmapped(w, dim_w))
        return jnp.zeros((0, *spec.x_shape), spec.dtype), 0
    channel, groups = geometry.channel_axis, geometry.groups
    if dim_w is None:
        dx = grad_input(_into_batch(dy, dim_dy), w, geometry, backend)
        return _out_of_batch(dx, size), 0
    if dim_dy is None:
        dx = grad_input(dy, _into_axis(w, dim_w, 0, groups), geometry, backend)
        return _out_of_axis(dx, size, channel, groups), 0
    dy = _into_axis(dy, dim_dy, channel, 1)
    w = _into_batch(w, dim_w)
    dx = grad_input(dy, w, geometry.with_groups(size * groups), backend)
    return _out_of_axis(dx, size, channel, 1), 0


def _grad_weight_batch(
    args: Any, dims: Any, *, geometry: Geometry, backend: str, bias: bool, **_: Any
) -> Any:
    x, dy = args
    dim_x, dim_dy = dims
    size = _size(args, dims)
    if size == 0:
        spec = Spec.of_grad_weight(geometry, _unmapped(x, dim_x), _unmapped(dy, dim_dy))
        outs = [jnp.zeros((0, *spec.w_shape), spec.dtype)]
        if bias:
            outs.append(jnp.zeros((0, spec.out_channels), spec.dtype))
        return outs, [0] * len(outs)
    channel, groups = geometry.channel_axis, geometry.groups
    if dim_dy is None:
        x = _into_axis(x, dim_x, channel, groups)
        dw, *db = grad_weight(x, dy, geometry, backend, bias=bias)
        return [_out_of_axis(dw, size, 0, groups), *db], [0] + [None] * len(db)
    if dim_x is None:
        dy = _into_axis(dy, dim_dy, channel, groups)
        dw, *db = grad_weight(x, dy, geometry, backend, bias=bias)
        db = [_out_of_axis(d, size, 0, groups) for d in db]
        return [_out_of_axis(dw, size, 1, 1), *db], [0] * (1 + len(db))
    x = _into_axis(x, dim_x, channel, 1)
    dy = _into_axis(dy, dim_dy, channel, 1)
    folded = geometry.with_groups(size * groups)
    outs = grad_weight(x, dy, folded, backend, bias=bias)
    return [_out_of_batch(o, size) for o in outs], [0] * len(outs)


batching.primitive_batchers[forward_p] = _forward_batch
batching.primitive_batchers[grad_input_p] = _grad_input_batch
batching.primitive_batchers[grad_weight_p] = _grad_weight_batch
