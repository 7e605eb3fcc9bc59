"""Derivatives of the three primitives, and the `custom_vjp` over them.

The primitives differentiate in both modes and to any order. The `custom_vjp` adds what
reverse mode can do better: the weight and bias gradients in one pass, and only those
that are asked for, with only the residuals that they need.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from jax_transconv.ops.primitives import (
    forward,
    forward_p,
    grad_input,
    grad_input_p,
    grad_weight,
    grad_weight_p,
)
from jax_transconv.spec import Geometry

__all__ = ["conv"]


def _is_zero(t: Any) -> bool:
    return type(t) is ad.Zero


def _add(terms: list[Any], primal: Any) -> Any:
    if not terms:
        return ad.Zero(jax.typeof(primal).to_tangent_aval())
    return functools.reduce(ad.add_jaxvals, terms)


def _bias_shape(geometry: Geometry, channels: int) -> tuple[int, ...]:
    return (channels, 1, 1) if geometry.layout == "NCHW" else (channels,)


def _broadcast_bias(b: Any, geometry: Geometry, shape: tuple) -> Any:
    return jnp.broadcast_to(b.reshape(_bias_shape(geometry, b.shape[0])), shape)


def _sum_to_bias(dy: Any, geometry: Geometry) -> Any:
    axes = tuple(a for a in range(4) if a != geometry.channel_axis)
    wide = jnp.float32 if dy.dtype.itemsize == 2 else dy.dtype
    return dy.sum(axis=axes, dtype=wide).astype(dy.dtype)


# -- forward --


def _forward_jvp(
    primals: Any, tangents: Any, *, geometry: Geometry, backend: str, **_: Any
) -> Any:
    x, w, *b = primals
    tx, tw, *tb = tangents
    y = forward(x, w, b[0] if b else None, geometry, backend)
    # A bias tangent rides on whichever product comes first: on the weight's, if that is
    # there, whose transpose makes both gradients in one pass.
    rider = tb[0] if tb and not _is_zero(tb[0]) else None
    terms = []
    for left, right in ((x, tw), (tx, w)):
        if not _is_zero(left) and not _is_zero(right):
            terms.append(forward(left, right, rider, geometry, backend))
            rider = None
    if rider is not None:
        terms.append(_broadcast_bias(rider, geometry, y.shape))
    return y, _add(terms, y)


def _forward_transpose(
    ct: Any, x: Any, w: Any, *b: Any, geometry: Geometry, backend: str, **_: Any
) -> list[Any]:
    wants_b = bool(b) and ad.is_undefined_primal(b[0])
    if _is_zero(ct):
        return [
            ad.Zero(v.aval) if ad.is_undefined_primal(v) else None for v in (x, w, *b)
        ]
    dx = dw = db = None
    if ad.is_undefined_primal(x):
        dx = grad_input(ct, w, geometry, backend)
    if ad.is_undefined_primal(w):
        dw, *rest = grad_weight(x, ct, geometry, backend, bias=wants_b)
        db = rest[0] if rest else None
    elif wants_b:
        db = _sum_to_bias(ct, geometry)
    return [dx, dw, db][: 2 + len(b)]


ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_transposes[forward_p] = _forward_transpose


# -- grad_input --


def _grad_input_jvp(
    primals: Any, tangents: Any, *, geometry: Geometry, backend: str, **_: Any
) -> Any:
    dy, w = primals
    tdy, tw = tangents
    dx = grad_input(dy, w, geometry, backend)
    terms = [
        grad_input(left, right, geometry, backend)
        for left, right in ((tdy, w), (dy, tw))
        if not _is_zero(left) and not _is_zero(right)
    ]
    return dx, _add(terms, dx)


def _grad_input_transpose(
    ct: Any, dy: Any, w: Any, *, geometry: Geometry, backend: str, **_: Any
) -> list[Any]:
    if _is_zero(ct):
        return [ad.Zero(v.aval) if ad.is_undefined_primal(v) else None for v in (dy, w)]
    if ad.is_undefined_primal(dy):
        return [forward(ct, w, None, geometry, backend), None]
    return [None, grad_weight(ct, dy, geometry, backend, bias=False)[0]]


ad.primitive_jvps[grad_input_p] = _grad_input_jvp
ad.primitive_transposes[grad_input_p] = _grad_input_transpose


# -- grad_weight --


def _grad_weight_jvp(
    primals: Any,
    tangents: Any,
    *,
    geometry: Geometry,
    backend: str,
    bias: bool,
    **_: Any,
) -> Any:
    x, dy = primals
    tx, tdy = tangents
    out = grad_weight(x, dy, geometry, backend, bias=bias)
    dw_terms, db_terms = [], []
    if not _is_zero(tdy):
        dw, *db = grad_weight(x, tdy, geometry, backend, bias=bias)
        dw_terms.append(dw)
        db_terms += db
    if not _is_zero(tx):
        dw_terms += grad_weight(tx, dy, geometry, backend, bias=False)
    terms = (dw_terms, db_terms)
    return out, [_add(t, p) for p, t in zip(out, terms, strict=False)]


def _grad_weight_transpose(
    cts: Any, x: Any, dy: Any, *, geometry: Geometry, backend: str, bias: bool, **_: Any
) -> list[Any]:
    ct_w = cts[0]
    ct_b = cts[1] if bias and not _is_zero(cts[1]) else None
    if ad.is_undefined_primal(x):
        # The bias gradient does not depend on x.
        if _is_zero(ct_w):
            return [ad.Zero(x.aval), None]
        return [grad_input(dy, ct_w, geometry, backend), None]
    if not _is_zero(ct_w):
        return [None, forward(x, ct_w, ct_b, geometry, backend)]
    if ct_b is not None:
        return [None, _broadcast_bias(ct_b, geometry, dy.aval.shape)]
    return [None, ad.Zero(dy.aval)]


ad.primitive_jvps[grad_weight_p] = _grad_weight_jvp
ad.primitive_transposes[grad_weight_p] = _grad_weight_transpose


# -- the default: reverse mode, fused --


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def conv(geometry: Geometry, backend: str, x: Any, w: Any, b: Any) -> Any:
    """The forward pass with the fused reverse rule; `b` may be None."""
    return forward(x, w, b, geometry, backend)


def _conv_fwd(geometry: Geometry, backend: str, x: Any, w: Any, b: Any) -> Any:
    y = forward(x.value, w.value, None if b is None else b.value, geometry, backend)
    # What is absent here is not computed in the backward pass; () marks a wanted bias.
    residuals = (
        x.value if w.perturbed else None,
        w.value if x.perturbed else None,
        () if b is not None and b.perturbed else None,
    )
    return y, residuals


def _conv_bwd(geometry: Geometry, backend: str, residuals: Any, dy: Any) -> Any:
    x, w, bias = residuals
    if isinstance(dy, SymbolicZero):
        return None, None, None
    dx = None if w is None else grad_input(dy, w, geometry, backend)
    dw = db = None
    if x is not None:
        dw, *rest = grad_weight(x, dy, geometry, backend, bias=bias is not None)
        db = rest[0] if rest else None
    elif bias is not None:
        db = _sum_to_bias(dy, geometry)
    return dx, dw, db


conv.defvjp(_conv_fwd, _conv_bwd, symbolic_zeros=True)
