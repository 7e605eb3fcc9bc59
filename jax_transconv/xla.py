"""Portable rows: the three passes in the forms that XLA is good at.

Two rules hold everywhere. No pass is left to XLA's own differentiation of a stretched
input, whose weight gradient is tens of times too slow; and no padding is negative,
because XLA:CPU reads out of place with a negative low padding: such a crop is a slice.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_transconv.spec import Precision, Spec

__all__ = ["ROWS"]


def _prepare(spec: Spec, platform: str, sums: bool) -> tuple[Spec, Any, Any]:
    """The problem as XLA must see it, the dtype of its operands, and that of sums.

    16-bit types are computed in float32 where XLA would round in between: on CPUs, and
    where several products are added (`sums`; XLA may multiply small operands in 16 bits
    whatever type is asked of the result). HIGH becomes HIGHEST where XLA would take it
    for DEFAULT.
    """
    dtype = jnp.dtype(spec.dtype)
    wide = jnp.dtype("float32") if spec.itemsize == 2 else dtype
    if platform == "cpu" or sums:
        dtype = wide
    if platform == "cuda" and spec.geometry.precision == Precision.HIGH:
        geometry = dataclasses.replace(spec.geometry, precision=Precision.HIGHEST)
        spec = dataclasses.replace(spec, geometry=geometry)
    return spec, dtype, wide


def _dims(spec: Spec, rhs: str) -> tuple[str, str, str]:
    return (spec.geometry.layout, rhs, spec.geometry.layout)


def _slice_axis(a: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    return lax.slice_in_dim(a, start, stop, step, axis)


def _crop_negative(
    a: Any, axes: Sequence[int], pads: Sequence[tuple[int, int]]
) -> tuple[Any, list[tuple[int, int]]]:
    """Turns negative padding into slices; returns the array and what remains to pad."""
    rest = []
    for axis, (lo, hi) in zip(axes, pads, strict=True):
        n = a.shape[axis]
        start = min(max(-lo, 0), n)
        stop = max(n - max(-hi, 0), start)
        a = _slice_axis(a, axis, start, stop)
        # A window that lies wholly beyond one end holds only padding of the other.
        beyond_lo, beyond_hi = max(-lo - n, 0), max(-hi - n, 0)
        rest.append((max(lo, 0) - beyond_hi, max(hi, 0) - beyond_lo))
    return a, rest


def _forward_kernel(spec: Spec, w: Any) -> tuple[Any, str]:
    """A weight, or some of its taps, as the kernel of a correlation over x."""
    w = w[:, :, ::-1, ::-1]
    g, ci, co = spec.geometry.groups, spec.in_per_group, spec.out_per_group
    if g == 1:
        return w, "IOHW"
    size = w.shape[2:]
    return w.reshape(g, ci, co, *size).swapaxes(1, 2).reshape(g * co, ci, *size), "OIHW"


def _add_bias(spec: Spec, y: Any, b: Any) -> Any:
    if b is None:
        return y
    shape = [1, 1, 1, 1]
    shape[spec.geometry.channel_axis] = spec.out_channels
    return y + b.astype(y.dtype).reshape(shape)


def forward_dilated(spec: Spec, x: Any, w: Any, out: Any) -> Any:
    """A correlation over the stretched input; XLA:GPU reads it as backward-data."""
    g = spec.geometry
    kernel, rhs = _forward_kernel(spec, w)
    extents = [g.extent(a, k) for a, k in enumerate(spec.kernel_size)]
    # Crops beyond the kernel would be negative padding: cut the result instead.
    pads = [
        (e - 1 - lo, e - 1 - hi) for e, (lo, hi) in zip(extents, g.crop, strict=True)
    ]
    y = lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1, 1),
        padding=[(max(lo, 0), max(hi, 0)) for lo, hi in pads],
        lhs_dilation=g.stride,
        rhs_dilation=g.dilation,
        dimension_numbers=_dims(spec, rhs),
        feature_group_count=g.groups,
        precision=g.precision.lax,
        preferred_element_type=out,
    )
    for axis, (lo, _), n in zip(g.spatial_axes, pads, spec.out_size, strict=True):
        start = max(-lo, 0)
        y = _slice_axis(y, axis, start, start + n)
    return y


def _residue_taps(spec: Spec, axis: int, residue: int) -> tuple[list[int], int, int]:
    """Taps of one output residue, the shift of the first, and the shift between two."""
    g = spec.geometry
    s, d, lo = g.stride[axis], g.dilation[axis], g.crop[axis][0]
    taps = [k for k in range(spec.kernel_size[axis]) if (d * k - lo) % s == residue]
    first = (d * taps[0] - lo) // s if taps else 0
    return taps, first, d // math.gcd(s, d)


def _evenly(taps: list[int]) -> slice:
    """Evenly spaced taps as a slice: a list would be an array constant and a gather."""
    step = taps[1] - taps[0] if len(taps) > 1 else 1
    return slice(taps[0], taps[-1] + 1, step)


def forward_phases(spec: Spec, x: Any, w: Any, out: Any) -> Any:
    """One dense correlation per output residue, interleaved: no zero is multiplied."""
    g = spec.geometry
    extents = [-(-o // s) for o, s in zip(spec.out_size, g.stride, strict=True)]
    shape = g.image_shape(spec.batch, spec.out_channels, extents)

    def phase(m_h: int, m_w: int) -> Any:
        parts = [_residue_taps(spec, a, m) for a, m in enumerate((m_h, m_w))]
        if not all(taps for taps, _, _ in parts):
            return jnp.zeros(shape, out)
        rows, columns = (_evenly(taps) for taps, _, _ in parts)
        sub = w[:, :, rows, columns]
        kernel, rhs = _forward_kernel(spec, sub)
        pads = []
        for axis, (taps, first, step) in enumerate(parts):
            span = (len(taps) - 1) * step
            lo = first + span
            pads.append((lo, extents[axis] - spec.in_size[axis] - lo + span))
        cropped, pads = _crop_negative(x, g.spatial_axes, pads)
        if 0 in cropped.shape:
            return jnp.zeros(shape, out)
        return lax.conv_general_dilated(
            cropped,
            kernel,
            window_strides=(1, 1),
            padding=pads,
            rhs_dilation=[step for _, _, step in parts],
            dimension_numbers=_dims(spec, rhs),
            feature_group_count=g.groups,
            precision=g.precision.lax,
            preferred_element_type=out,
        )

    h_axis, w_axis = g.spatial_axes
    rows = [
        jnp.stack([phase(m_h, m_w) for m_w in range(g.stride[1])], axis=w_axis + 1)
        for m_h in range(g.stride[0])
    ]
    y = jnp.stack(rows, axis=h_axis + 1)
    full = [v * s for v, s in zip(extents, g.stride, strict=True)]
    y = y.reshape(g.image_shape(spec.batch, spec.out_channels, full))
    for axis, n in zip(g.spatial_axes, spec.out_size, strict=True):
        y = _slice_axis(y, axis, 0, n)
    return y


def grad_input_strided(spec: Spec, dy: Any, w: Any, out: Any) -> Any:
    """The ordinary strided correlation of which the forward pass is the transpose."""
    g = spec.geometry
    dy, pads = _crop_negative(dy, g.spatial_axes, g.crop)
    return lax.conv_general_dilated(
        dy,
        w,
        window_strides=g.stride,
        padding=pads,
        rhs_dilation=g.dilation,
        dimension_numbers=_dims(spec, "OIHW"),
        feature_group_count=g.groups,
        precision=g.precision.lax,
        preferred_element_type=out,
    )


def grad_weight_filter(spec: Spec, x: Any, dy: Any, out: Any) -> Any:
    """The filter gradient of that strided correlation: dy slides over x as a kernel."""
    g = spec.geometry
    dy, pads = _crop_negative(dy, g.spatial_axes, g.crop)
    lhs = {"NCHW": "CNHW", "NHWC": "CHWN"}[g.layout]
    rhs = {"NCHW": "IOHW", "NHWC": "IHWO"}[g.layout]
    return lax.conv_general_dilated(
        dy,
        x,
        window_strides=g.dilation,
        padding=pads,
        rhs_dilation=g.stride,
        dimension_numbers=(lhs, rhs, "CNHW"),
        batch_group_count=g.groups,
        precision=g.precision.lax,
        preferred_element_type=out,
    )


@dataclasses.dataclass(frozen=True)
class _Reach:
    """The part of one axis that a tap joins: x[i] for y[s * i + offset]."""

    x: tuple[int, int, int]  # start, stop, step
    y: tuple[int, int, int]


def _reach(spec: Spec, axis: int, k: int) -> _Reach | None:
    g = spec.geometry
    s, offset = g.stride[axis], g.dilation[axis] * k - g.crop[axis][0]
    first = max(-(offset // s), 0)
    last = min((spec.out_size[axis] - 1 - offset) // s, spec.in_size[axis] - 1)
    if last < first:
        return None
    start = s * first + offset
    return _Reach((first, last + 1, 1), (start, start + s * (last - first) + 1, s))


def _window(spec: Spec, reaches: Sequence[tuple[int, int, int]]) -> tuple[slice, ...]:
    index = [slice(None)] * 4
    for image_axis, reach in zip(spec.geometry.spatial_axes, reaches, strict=True):
        index[image_axis] = slice(*reach)
    return tuple(index)


def _taps(spec: Spec) -> Iterator[tuple[int, int, tuple, tuple]]:
    """Taps that reach into both images, with the windows of x and y that they join."""
    for i, j in itertools.product(*map(range, spec.kernel_size)):
        rows, columns = _reach(spec, 0, i), _reach(spec, 1, j)
        if rows and columns:
            x_window = _window(spec, (rows.x, columns.x))
            yield i, j, x_window, _window(spec, (rows.y, columns.y))


def _split_groups(spec: Spec, a: Any) -> Any:
    axis, groups = spec.geometry.channel_axis, spec.geometry.groups
    shape = (*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])
    return a.reshape(shape)


def _join_groups(spec: Spec, a: Any) -> Any:
    axis = spec.geometry.channel_axis
    shape = (*a.shape[:axis], a.shape[axis] * a.shape[axis + 1], *a.shape[axis + 2 :])
    return a.reshape(shape)


def _placed(a: Any, window: tuple[slice, ...], shape: tuple) -> Any:
    """An array at a strided window of zeros: a scatter would hold constant indices."""
    pads = []
    for n, size, place in zip(a.shape, shape, window, strict=True):
        start, step = place.start or 0, place.step or 1
        pads.append((start, size - start - (n - 1) * step - 1, step - 1))
    return lax.pad(a, jnp.zeros((), a.dtype), pads)


def _contract(spec: Spec, form: str, a: Any, b: Any, out: Any) -> Any:
    """An einsum over X and Y, images by channel, and W, the weight of one tap."""
    nchw = spec.geometry.layout == "NCHW"
    letters = {"X": "ngihw" if nchw else "nhwgi", "Y": "ngohw" if nchw else "nhwgo"}
    for name, value in (letters | {"W": "gio"}).items():
        form = form.replace(name, value)
    precision = spec.geometry.precision.lax
    return jnp.einsum(form, a, b, precision=precision, preferred_element_type=out)


def _tap_weight(spec: Spec, w: Any, i: int, j: int) -> Any:
    shape = (spec.geometry.groups, spec.in_per_group, spec.out_per_group)
    return w[:, :, i, j].reshape(shape)


def forward_taps(spec: Spec, x: Any, w: Any, out: Any) -> Any:
    """One contraction per tap, added to the places of y that it reaches."""
    y = jnp.zeros(spec.y_shape, out)
    for i, j, x_window, y_window in _taps(spec):
        part = _split_groups(spec, x[x_window])
        part = _contract(spec, "X,W->Y", part, _tap_weight(spec, w, i, j), out)
        y += _placed(_join_groups(spec, part), y_window, spec.y_shape)
    return y


def grad_input_taps(spec: Spec, dy: Any, w: Any, out: Any) -> Any:
    """One contraction per tap over strided slices of dy."""
    dx = jnp.zeros(spec.x_shape, out)
    for i, j, x_window, y_window in _taps(spec):
        part = _split_groups(spec, dy[y_window])
        part = _contract(spec, "Y,W->X", part, _tap_weight(spec, w, i, j), out)
        dx += _placed(_join_groups(spec, part), x_window, spec.x_shape)
    return dx


def grad_weight_taps(spec: Spec, x: Any, dy: Any, out: Any) -> Any:
    """One contraction per tap over strided slices of dy."""
    shape = (spec.geometry.groups, spec.in_per_group, spec.out_per_group)
    taps = [jnp.zeros(shape, out)] * spec.taps
    for i, j, x_window, y_window in _taps(spec):
        a, b = _split_groups(spec, x[x_window]), _split_groups(spec, dy[y_window])
        taps[i * spec.kernel_size[1] + j] = _contract(spec, "X,Y->W", a, b, out)
    return jnp.stack(taps, axis=-1).reshape(spec.w_shape)


def _sum_bias(spec: Spec, dy: Any) -> Any:
    axes = tuple(a for a in range(4) if a != spec.geometry.channel_axis)
    return dy.sum(axis=axes, dtype=jnp.float32 if dy.dtype.itemsize == 2 else dy.dtype)


# Every row takes (spec, platform, operands). `out` is the dtype in which its products
# are summed and returned: wider than the operands if more is added before the rounding.


def _run_forward(compute: Callable[..., Any], sums: bool = False) -> Callable[..., Any]:
    def run(spec: Spec, platform: str, x: Any, w: Any, b: Any = None) -> Any:
        spec, dtype, wide = _prepare(spec, platform, sums)
        out = dtype if b is None else wide
        y = compute(spec, x.astype(dtype), w.astype(dtype), out)
        return _add_bias(spec, y, b).astype(spec.dtype)

    return run


def _run_grad_input(
    compute: Callable[..., Any], sums: bool = False
) -> Callable[..., Any]:
    def run(spec: Spec, platform: str, dy: Any, w: Any) -> Any:
        spec, dtype, _ = _prepare(spec, platform, sums)
        dx = compute(spec, dy.astype(dtype), w.astype(dtype), dtype)
        return dx.astype(spec.dtype)

    return run


def _run_grad_weight(
    compute: Callable[..., Any], sums: bool = False
) -> Callable[..., Any]:
    def run(spec: Spec, platform: str, x: Any, dy: Any, *, bias: bool) -> list[Any]:
        spec, dtype, _ = _prepare(spec, platform, sums)
        dw = compute(spec, x.astype(dtype), dy.astype(dtype), dtype).astype(spec.dtype)
        return [dw, _sum_bias(spec, dy).astype(spec.dtype)] if bias else [dw]

    return run


def _empty_forward(spec: Spec, platform: str, x: Any, w: Any, b: Any = None) -> Any:
    del platform, x, w, b
    return jnp.zeros(spec.y_shape, spec.dtype)


def _empty_grad_input(spec: Spec, platform: str, dy: Any, w: Any) -> Any:
    del platform, dy, w
    return jnp.zeros(spec.x_shape, spec.dtype)


def _empty_grad_weight(
    spec: Spec, platform: str, x: Any, dy: Any, *, bias: bool
) -> list[Any]:
    del platform, x, dy
    dw = jnp.zeros(spec.w_shape, spec.dtype)
    return [dw, jnp.zeros((spec.out_channels,), spec.dtype)] if bias else [dw]


# (row name, pass) -> how to run it. The table of rows is plan/candidates.py.
ROWS: dict[tuple[str, str], Callable[..., Any]] = {
    ("xla:empty", "forward"): _empty_forward,
    ("xla:empty", "grad_input"): _empty_grad_input,
    ("xla:empty", "grad_weight"): _empty_grad_weight,
    ("xla:phases", "forward"): _run_forward(forward_phases),
    ("xla:dilated", "forward"): _run_forward(forward_dilated),
    ("xla:taps", "forward"): _run_forward(forward_taps, sums=True),
    ("xla:strided", "grad_input"): _run_grad_input(grad_input_strided),
    ("xla:taps", "grad_input"): _run_grad_input(grad_input_taps, sums=True),
    ("xla:taps", "grad_weight"): _run_grad_weight(grad_weight_taps, sums=True),
    ("xla:filter", "grad_weight"): _run_grad_weight(grad_weight_filter),
}
