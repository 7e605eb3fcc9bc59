"""One `conv_general_dilated` of a traced program, in our terms.

Two of the forms that XLA's general convolution takes are ours. With ``lhs_dilation`` it
is a transposed convolution:

    y[o] = sum over i, k of x[i] w'[k],   o = s*i - d*k + pad,

so that ``k = K - 1 - k'`` flips the kernel and ``d*(K - 1) - pad`` is the crop. And
with batch and feature axes exchanged, its "kernel" being an output gradient and its
window stride the dilation, it is the weight gradient of one, as JAX derives it:

    dw'[k] = sum over i of x[i] dy[s*i - d*k + pad].

Axis orders are taken from the dimension numbers. A 1-D image is one of height 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives as lax_primitives

from jax_transconv.api import conv_transpose2d
from jax_transconv.ops import primitives
from jax_transconv.spec import DTYPES, Geometry, Spec, parse_geometry, parse_precision

__all__ = ["Conv", "is_candidate", "recognise"]


def is_candidate(eqn: Any) -> bool:
    """Whether an equation is a convolution of a stretched input."""
    if eqn.primitive is not lax_primitives.conv_general_dilated_p:
        return False
    return any(s > 1 for s in eqn.params["lhs_dilation"])


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution that is ours.

    Attributes:
        spec: the problem, as of a transposed convolution.
        is_weight_gradient: whether it is the weight gradient of that problem.
        run: computes it from the operands of the equation.
    """

    spec: Spec
    is_weight_gradient: bool
    run: Any


def recognise(eqn: Any, backend: str) -> Conv | str:
    """What a candidate is in our terms, or why it is left alone.

    Args:
        eqn: an equation for which `is_candidate` holds.
        backend: as in `jax_transconv.conv_transpose2d`.

    Returns:
        The convolution, or the reason in words.
    """
    p = eqn.params
    lhs, rhs = (v.aval for v in eqn.invars)
    rank = len(p["lhs_dilation"])
    if rank > 2:
        return f"it has {rank} spatial axes, and only 1 or 2 are ours"
    dtypes = [np.dtype(a.dtype).name for a in (lhs, rhs)]
    if dtypes[0] != dtypes[1] or dtypes[0] not in DTYPES:
        return f"its operands are {dtypes[0]} and {dtypes[1]}"
    wanted = p["preferred_element_type"]
    if wanted is not None and np.dtype(wanted) != lhs.dtype:
        return f"its result is {np.dtype(wanted).name}, its operands {dtypes[0]}"
    try:
        parse_precision(p["precision"])
    except ValueError:
        return f"its precision {p['precision']} has no equal here"

    forms = [_forward, _weight_gradient]
    if _looks_like_a_weight_gradient(eqn):
        forms.reverse()
    first = forms[0](eqn, backend)
    if isinstance(first, Conv):
        return first
    second = forms[1](eqn, backend)
    return second if isinstance(second, Conv) else first


def _looks_like_a_weight_gradient(eqn: Any) -> bool:
    """Where both forms fit, a window larger than the result is an output gradient."""
    if eqn.params["batch_group_count"] > 1:
        return True
    _, window, result = (_spatial(v.aval.shape, s) for v, s in _with_specs(eqn))
    if not _is_static((*window, *result)):
        return False
    return math.prod(window) > math.prod(result)


def _is_static(shape: Sequence[Any]) -> bool:
    return all(isinstance(n, int) for n in shape)


def _with_specs(eqn: Any) -> list[tuple[Any, Any]]:
    numbers = eqn.params["dimension_numbers"]
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    return list(zip((*eqn.invars, eqn.outvars[0]), specs, strict=True))


def _spatial(shape: Any, spec: Any) -> tuple[int, ...]:
    return tuple(shape[a] for a in spec[2:])


def _to_planes(array: Any, spec: Any) -> Any:
    """(first, second, H, W) of an array whose axes a dimension spec describes."""
    array = jnp.transpose(array, spec)
    return array if array.ndim == 4 else jnp.expand_dims(array, 2)


def _from_planes(array: Any, spec: Any) -> Any:
    """The inverse of `_to_planes`."""
    array = array if len(spec) == 4 else jnp.squeeze(array, 2)
    return jnp.transpose(array, [spec.index(a) for a in range(len(spec))])


def _planes(variable: Any, spec: Any) -> Any:
    """Shape and dtype of `_to_planes`."""
    aval = variable.aval
    shape = tuple(aval.shape[a] for a in spec)
    shape = shape if len(shape) == 4 else (*shape[:2], 1, *shape[2:])
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _pairs(values: Any, one: Any) -> Any:
    """A value for both axes, from one or two spatial ones."""
    values = tuple(values)
    return values if len(values) == 2 else (one, *values)


def _forward(eqn: Any, backend: str) -> Conv | str:
    p = eqn.params
    if p["batch_group_count"] > 1:
        return "it groups its batch"
    if any(s > 1 for s in p["window_strides"]):
        return "it has a window stride as well"
    (x, x_spec), (w, w_spec), (_, y_spec) = _with_specs(eqn)
    kernel = _planes(w, w_spec)  # (C_out, C_in // groups, kh, kw)
    if not _is_static(kernel.shape):
        return f"the shape of its kernel, {kernel.shape}, is symbolic"
    groups = p["feature_group_count"]
    dilation = _pairs(p["rhs_dilation"], 1)
    padding = _pairs(p["padding"], (0, 0))
    crop = tuple(
        (d * (k - 1) - low, d * (k - 1) - high)
        for d, k, (low, high) in zip(dilation, kernel.shape[2:], padding, strict=True)
    )
    # Channels-last arrays are taken as they lie, everything else as NCHW.
    last = x_spec == y_spec == (0, 3, 1, 2)
    arguments: dict[str, Any] = {
        "stride": _pairs(p["lhs_dilation"], 1),
        "padding": crop,
        "dilation": dilation,
        "groups": groups,
        "layout": "NHWC" if last else "NCHW",
        "precision": p["precision"],
    }

    def weight_of(w: Any) -> Any:
        w = _to_planes(w, w_spec)[:, :, ::-1, ::-1]
        c_out, c_in, *size = w.shape
        w = w.reshape(groups, c_out // groups, c_in, *size)
        return jnp.swapaxes(w, 1, 2).reshape(groups * c_in, c_out // groups, *size)

    def run(x: Any, w: Any) -> Any:
        y = conv_transpose2d(
            x if last else _to_planes(x, x_spec),
            weight_of(w),
            **arguments,
            backend=backend,
            autodiff="both",
        )
        return y if last else _from_planes(y, y_spec)

    image = x.aval if last else _planes(x, x_spec)
    weight = jax.eval_shape(weight_of, jax.ShapeDtypeStruct(w.aval.shape, w.aval.dtype))
    try:
        spec = parse_geometry(image, weight, **arguments)
    except (TypeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return Conv(spec, False, run)


def _weight_gradient(eqn: Any, backend: str) -> Conv | str:
    p = eqn.params
    if p["feature_group_count"] > 1 or any(d > 1 for d in p["rhs_dilation"]):
        return "its window is dilated or grouped as no weight gradient's is"
    (x, x_spec), (dy, dy_spec), (w, w_spec) = _with_specs(eqn)
    groups = p["batch_group_count"]
    # Channels are the batch of this convolution, and images are its features.
    x_spec = (x_spec[1], x_spec[0], *x_spec[2:])
    dy_spec = (dy_spec[1], dy_spec[0], *dy_spec[2:])
    image, cotangent = _planes(x, x_spec), _planes(dy, dy_spec)
    kernel_size = _planes(w, w_spec).shape[2:]
    # The number of images may be symbolic, as in a call.
    if not _is_static((*image.shape[1:], *cotangent.shape[1:], *kernel_size)):
        return "its sizes are symbolic"
    stride = _pairs(p["lhs_dilation"], 1)
    dilation = _pairs(p["window_strides"], 1)
    padding = _pairs(p["padding"], (0, 0))
    crop = []
    for a in range(2):
        reach = dilation[a] * (kernel_size[a] - 1)
        low = reach - padding[a][0]
        full = (image.shape[2 + a] - 1) * stride[a] + reach + 1
        crop.append((low, full - low - cotangent.shape[2 + a]))
    if 0 in (*image.shape[1:], *cotangent.shape[1:], *kernel_size):
        return "it is empty"
    geometry = Geometry(
        stride,
        dilation,
        (crop[0], crop[1]),
        groups,
        "NCHW",
        parse_precision(p["precision"]),
    )

    def run(x: Any, dy: Any) -> Any:
        x, dy = _to_planes(x, x_spec), _to_planes(dy, dy_spec)
        (dw,) = primitives.grad_weight(x, dy, geometry, backend, bias=False)
        c_in, c_out, *size = dw.shape  # c_out of one group
        dw = dw[:, :, ::-1, ::-1].reshape(groups, c_in // groups, c_out, *size)
        dw = jnp.swapaxes(dw, 0, 1).reshape(c_in // groups, groups * c_out, *size)
        return _from_planes(dw, w_spec)

    return Conv(Spec.of_grad_weight(geometry, image, cotangent), True, run)
