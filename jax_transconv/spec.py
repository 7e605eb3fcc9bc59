"""What a transposed convolution is: parsing, checking and geometry.

Everything that a caller may write is turned here, once, into a `Geometry` (what the
arguments say) and a `Spec` (what the arrays add). Nothing downstream checks again.

Padding is kept as a *crop*: how many positions are cut from each end of the full
transposed convolution, whose length is ``(in - 1) * stride + dilation * (k - 1) + 1``.
A crop may be negative, which appends positions that hold only the bias. PyTorch's
``padding=p, output_padding=op`` is the crop ``(p, p - op)``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax.extend.core import InconclusiveDimensionOperation

__all__ = ["Geometry", "Precision", "Spec", "parse_geometry"]

OP = "conv_transpose2d"
LAYOUTS = ("NCHW", "NHWC")
DTYPES = ("float16", "bfloat16", "float32", "float64")

_AXES = ("height", "width")
_MAX_INT = 2**31 - 1  # strides, dilations, crops and extents that any kernel takes
_MAX_BYTES = 2**63 - 1  # XLA holds byte counts in int64


class Precision(enum.IntEnum):
    """Error class of float32 products, by JAX's own words for it.

    Attributes:
        DEFAULT: one TF32-class product, relative error about 3e-4.
        HIGH: three 16-bit or TF32 products, about 5e-6.
        HIGHEST: as accurate as float32 multiply-adds.
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    @property
    def lax(self) -> jax.lax.Precision:
        """The `jax.lax.Precision` of the same name."""
        return jax.lax.Precision[self.name]


_PRECISION_NAMES = {
    "default": Precision.DEFAULT,
    "fastest": Precision.DEFAULT,
    "bfloat16": Precision.DEFAULT,
    "tensorfloat32": Precision.DEFAULT,
    "tf32": Precision.DEFAULT,
    "high": Precision.HIGH,
    "bfloat16_3x": Precision.HIGH,
    "highest": Precision.HIGHEST,
    "float32": Precision.HIGHEST,
    # jax.lax.DotAlgorithmPreset, by what each keeps of a float32 product.
    "any_f8_any_f8_f32": Precision.DEFAULT,
    "any_f8_any_f8_f32_fast_accum": Precision.DEFAULT,
    "any_f8_any_f8_any": Precision.DEFAULT,
    "any_f8_any_f8_any_fast_accum": Precision.DEFAULT,
    "f16_f16_f16": Precision.DEFAULT,
    "f16_f16_f32": Precision.DEFAULT,
    "bf16_bf16_bf16": Precision.DEFAULT,
    "bf16_bf16_f32": Precision.DEFAULT,
    "tf32_tf32_f32": Precision.DEFAULT,
    "tf32_tf32_f32_x3": Precision.HIGH,
    "bf16_bf16_f32_x3": Precision.HIGH,
    "bf16_bf16_f32_x6": Precision.HIGHEST,
    "bf16_bf16_f32_x9": Precision.HIGHEST,
    "f32_f32_f32": Precision.HIGHEST,
    "f64_f64_f64": Precision.HIGHEST,
}


def value_error(rule: str, resolution: str) -> ValueError:
    """An error about a value, in the one form that all our errors have."""
    return ValueError(f"{OP}: {rule}\nResolution: {resolution}")


def type_error(rule: str, resolution: str) -> TypeError:
    """An error about structure or dtype, in the one form that all our errors have."""
    return TypeError(f"{OP}: {rule}\nResolution: {resolution}")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The static arguments of one call, in their only internal form.

    Sizes are absent on purpose: batching and sharding change them, and every one that
    is needed follows from the shapes of any two of x, weight and y.

    Attributes:
        stride: per axis, positive.
        dilation: per axis, positive.
        crop: per axis (lo, hi), signed.
        groups: number of channel groups.
        layout: memory order of x and y; weights are (in, out // groups, kh, kw) always.
        precision: error class of float32 products.
    """

    stride: tuple[int, int]
    dilation: tuple[int, int]
    crop: tuple[tuple[int, int], tuple[int, int]]
    groups: int = 1
    layout: str = "NCHW"
    precision: Precision = Precision.DEFAULT

    @property
    def channel_axis(self) -> int:
        """Axis of the channels in x and y."""
        return 1 if self.layout == "NCHW" else 3

    @property
    def spatial_axes(self) -> tuple[int, int]:
        """Axes of height and width in x and y."""
        return (2, 3) if self.layout == "NCHW" else (1, 2)

    def image_shape(self, batch: Any, channels: Any, size: Sequence[Any]) -> tuple:
        """Shape of x or y with these extents."""
        if self.layout == "NCHW":
            return (batch, channels, *size)
        return (batch, *size, channels)

    def extent(self, axis: int, kernel: int) -> int:
        """Dilated kernel extent."""
        return self.dilation[axis] * (kernel - 1) + 1

    def out_size(self, in_size: Sequence[Any], kernel_size: Sequence[int]) -> tuple:
        """Output size of an input: (in - 1) * stride + extent - lo - hi."""
        return tuple(
            (n - 1) * s + self.extent(a, k) - lo - hi
            for a, (n, k, s, (lo, hi)) in enumerate(
                zip(in_size, kernel_size, self.stride, self.crop, strict=True)
            )
        )

    def in_size(self, out_size: Sequence[Any], kernel_size: Sequence[int]) -> tuple:
        """Input size of an output; exact inverse of `out_size`."""
        return tuple(
            (n + lo + hi - self.extent(a, k)) // s + 1
            for a, (n, k, s, (lo, hi)) in enumerate(
                zip(out_size, kernel_size, self.stride, self.crop, strict=True)
            )
        )

    def kernel_size(self, in_size: Sequence[int], out_size: Sequence[int]) -> tuple:
        """Kernel size that joins an input and an output."""
        return tuple(
            (o + lo + hi - (n - 1) * s - 1) // d + 1
            for n, o, s, d, (lo, hi) in zip(
                in_size, out_size, self.stride, self.dilation, self.crop, strict=True
            )
        )

    def with_groups(self, groups: int) -> Geometry:
        """The same geometry over another number of groups."""
        return dataclasses.replace(self, groups=groups)


@dataclasses.dataclass(frozen=True)
class Spec:
    """A whole problem: a geometry and the sizes of the arrays it meets.

    Attributes:
        geometry: the static arguments.
        batch: batch size; an int, or symbolic under shape-polymorphic export.
        in_channels: channels of x.
        out_channels: channels of y.
        in_size: height and width of x.
        kernel_size: height and width of the kernel.
        dtype: name of the element type that all arrays share.
    """

    geometry: Geometry
    batch: Any
    in_channels: int
    out_channels: int
    in_size: tuple[Any, Any]
    kernel_size: tuple[int, int]
    dtype: str

    @classmethod
    def of_forward(cls, geometry: Geometry, x: Any, w: Any) -> Spec:
        """The problem in which x meets w; both need only a shape and a dtype."""
        h, wd = geometry.spatial_axes
        return cls(
            geometry,
            x.shape[0],
            w.shape[0],
            w.shape[1] * geometry.groups,
            (x.shape[h], x.shape[wd]),
            tuple(w.shape[2:]),
            np.dtype(x.dtype).name,
        )

    @classmethod
    def of_grad_input(cls, geometry: Geometry, dy: Any, w: Any) -> Spec:
        """The problem whose output gradient is dy and whose weight is w."""
        h, wd = geometry.spatial_axes
        kernel_size = tuple(w.shape[2:])
        return cls(
            geometry,
            dy.shape[0],
            w.shape[0],
            w.shape[1] * geometry.groups,
            geometry.in_size((dy.shape[h], dy.shape[wd]), kernel_size),
            kernel_size,
            np.dtype(dy.dtype).name,
        )

    @classmethod
    def of_grad_weight(cls, geometry: Geometry, x: Any, dy: Any) -> Spec:
        """The problem whose input is x and whose output gradient is dy."""
        h, wd = geometry.spatial_axes
        c = geometry.channel_axis
        in_size = (x.shape[h], x.shape[wd])
        return cls(
            geometry,
            x.shape[0],
            x.shape[c],
            dy.shape[c],
            in_size,
            geometry.kernel_size(in_size, (dy.shape[h], dy.shape[wd])),
            np.dtype(x.dtype).name,
        )

    @property
    def out_size(self) -> tuple[Any, Any]:
        """Height and width of y."""
        return self.geometry.out_size(self.in_size, self.kernel_size)

    @property
    def x_shape(self) -> tuple:
        """Shape of x and of its gradient."""
        return self.geometry.image_shape(self.batch, self.in_channels, self.in_size)

    @property
    def y_shape(self) -> tuple:
        """Shape of y and of its gradient."""
        return self.geometry.image_shape(self.batch, self.out_channels, self.out_size)

    @property
    def w_shape(self) -> tuple:
        """Shape of the weight and of its gradient."""
        return (
            self.in_channels,
            self.out_channels // self.geometry.groups,
            *self.kernel_size,
        )

    @property
    def in_per_group(self) -> int:
        """Input channels of one group."""
        return self.in_channels // self.geometry.groups

    @property
    def out_per_group(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.geometry.groups

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def is_static(self) -> bool:
        """Whether every size is a plain integer."""
        return all(isinstance(n, int) for n in (self.batch, *self.in_size))

    @property
    def is_empty(self) -> bool:
        """Whether there is no image at all."""
        return isinstance(self.batch, int) and self.batch == 0

    @property
    def is_strided(self) -> bool:
        """Whether any stride exceeds one."""
        return self.geometry.stride != (1, 1)

    def to_attrs(self) -> dict[str, Any]:
        """The geometry as the custom calls' struct attribute (cc/ffi/attrs.h)."""
        g = self.geometry
        (lo_h, hi_h), (lo_w, hi_w) = g.crop
        return {
            "stride_h": g.stride[0],
            "stride_w": g.stride[1],
            "dilation_h": g.dilation[0],
            "dilation_w": g.dilation[1],
            "crop_lo_h": lo_h,
            "crop_hi_h": hi_h,
            "crop_lo_w": lo_w,
            "crop_hi_w": hi_w,
            "groups": g.groups,
            "layout": np.int32(LAYOUTS.index(g.layout)),
            "precision": np.int32(g.precision),
        }


# -- Parsers: each takes what a caller wrote and names the argument in its error. --


def parse_integer(name: str, value: Any) -> int:
    if isinstance(value, jax.core.Tracer):
        raise type_error(
            f"{name} must be known while tracing, got the traced value {value}.",
            f"pass {name} as a Python int, or mark it static "
            f"(jax.jit(..., static_argnames='{name}')).",
        )
    if isinstance(value, (bool, np.bool_)):
        raise type_error(
            f"{name} must be an integer, got the boolean {value}.",
            f"pass {name} as an int or a pair of ints.",
        )
    try:
        return operator.index(value)
    except TypeError:
        raise type_error(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}.",
            f"pass {name} as an int or a pair of ints.",
        ) from None


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    if isinstance(value, (np.ndarray, jax.Array)):
        return value.ndim > 0
    return isinstance(value, Sequence)


def parse_pair(name: str, value: Any, minimum: int) -> tuple[int, int]:
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        value = np.asarray(value)  # iterating it under jit would trace
    if _is_sequence(value):
        items = tuple(value)
        if len(items) == 1:
            items *= 2
        if len(items) != 2:
            raise type_error(
                f"{name} must be one int or two (height, width), got "
                f"{len(items)} values: {value!r}.",
                f"give {name} one value per spatial axis.",
            )
    else:
        items = (value, value)
    pair = (parse_integer(name, items[0]), parse_integer(name, items[1]))
    for axis, item in zip(_AXES, pair, strict=True):
        if item < minimum:
            bound = "positive" if minimum == 1 else "non-negative"
            hint = (
                f"use {name} >= {minimum}."
                if name != "padding"
                else "write a signed crop as padding=((lo, hi), (lo, hi))."
            )
            raise value_error(
                f"{name} must be {bound}, got {axis} {item} in {pair}.", hint
            )
        if item > _MAX_INT:
            raise value_error(
                f"{name} must be at most {_MAX_INT}, got {axis} {item}.",
                f"use a smaller {name}.",
            )
    return pair


def same_crop(stride: int, extent: int) -> tuple[int, int]:
    """Crop of JAX's ``padding="SAME"`` (`jax.lax.conv_transpose`) on one axis."""
    pad_len = extent + stride - 2
    before = extent - 1 if stride > extent - 1 else -(-pad_len // 2)
    return extent - 1 - before, extent - 1 - (pad_len - before)


def valid_crop(stride: int, extent: int) -> tuple[int, int]:
    """Crop of JAX's ``padding="VALID"`` (`jax.lax.conv_transpose`) on one axis."""
    return 0, -max(stride - extent, 0)


def _parse_crop(
    padding: Any, stride: tuple[int, int], extents: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    if isinstance(padding, str):
        rules = {"SAME": same_crop, "VALID": valid_crop}
        rule = rules.get(padding)
        if rule is None:
            raise value_error(
                f"padding must be integers, pairs, 'SAME' or 'VALID', got {padding!r}.",
                "use one of these forms; circular padding is a wrap of the input.",
            )
        crops = [rule(s, e) for s, e in zip(stride, extents, strict=True)]
        return crops[0], crops[1]
    if _is_sequence(padding) and any(_is_sequence(p) for p in padding):
        if len(padding) != 2 or not all(
            _is_sequence(p) and len(p) == 2 for p in padding
        ):
            raise type_error(
                "padding in explicit form must be ((lo, hi), (lo, hi)), "
                f"got {padding!r}.",
                "give one (lo, hi) pair for the height and one for the width.",
            )
        (lo_h, hi_h), (lo_w, hi_w) = (
            (parse_integer("padding", lo), parse_integer("padding", hi))
            for lo, hi in padding
        )
        for item in (lo_h, hi_h, lo_w, hi_w):
            if abs(item) > _MAX_INT:
                raise value_error(
                    f"padding must be within +-{_MAX_INT}, got {item}.",
                    "use a smaller crop.",
                )
        return (lo_h, hi_h), (lo_w, hi_w)
    p_h, p_w = parse_pair("padding", padding, 0)
    return (p_h, p_h), (p_w, p_w)


def _parse_output_padding(
    value: Any, stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int]:
    pair = parse_pair("output_padding", value, 0)
    for axis, op, s, d in zip(_AXES, pair, stride, dilation, strict=True):
        if op >= s and op >= d:
            raise value_error(
                f"output_padding must be smaller than stride or dilation on each axis, "
                f"got {axis} output_padding={op} with stride={s}, dilation={d}.",
                f"use output_padding <= {max(s, d) - 1}, or append positions with a "
                "negative crop: padding=((lo, hi), (lo, hi)).",
            )
    return pair


def _parse_output_size(
    value: Any,
    base: tuple[Any, Any],
    stride: tuple[int, int],
    in_size: tuple[Any, Any],
) -> tuple[int, int]:
    if not _is_sequence(value):
        value = (value, value)
    if len(value) not in (2, 4):
        raise type_error(
            f"output_size must have 2 values (height, width), got {len(value)}: "
            f"{tuple(value)!r}.",
            "pass the spatial sizes only.",
        )
    for axis, n in zip(_AXES, in_size, strict=True):
        if not isinstance(n, int):
            raise value_error(
                f"output_size needs a known input size, got {axis} {n}.",
                "use output_padding, or a crop as padding, with symbolic sizes.",
            )
    size = tuple(parse_integer("output_size", v) for v in tuple(value)[-2:])
    for axis, o, b, s, n in zip(_AXES, size, base, stride, in_size, strict=True):
        if not b <= o <= b + s - 1:
            raise value_error(
                f"output_size {axis} {o} is not reachable from an input of {n}: "
                f"legal values are {b} to {b + s - 1}.",
                f"choose one of [{b}, {b + s - 1}], or change stride or padding.",
            )
    return size[0], size[1]


def parse_precision(value: Any) -> Precision:
    """Reads a precision in any of JAX's spellings.

    Args:
        value: None (what `jax.default_matmul_precision` says), a `jax.lax.Precision`,
            one of its strings, a `jax.lax.DotAlgorithmPreset` or its name, or a pair
            of these (the higher counts).

    Returns:
        The error class that it asks for.
    """
    if value is None:
        value = jax.config.jax_default_matmul_precision  # pyright: ignore
        if value is None:
            return Precision.DEFAULT
    if isinstance(value, Precision):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return max(parse_precision(v) for v in value)
    name = value if isinstance(value, str) else getattr(value, "name", None)
    found = _PRECISION_NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise value_error(
            f"precision {value!r} is not known.",
            "use None, 'default', 'high', 'highest', a jax.lax.Precision or the name "
            "of a jax.lax.DotAlgorithmPreset.",
        )
    return found


def _check_arrays(x: Any, weight: Any, bias: Any, layout: str) -> None:
    named = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, array in named.items():
        dtype = np.dtype(array.dtype).name
        if dtype not in DTYPES:
            raise type_error(
                f"{name} has dtype {dtype}, which is not one of {', '.join(DTYPES)}.",
                f"cast it: {name}.astype('float32').",
            )
        if dtype != np.dtype(x.dtype).name:
            want = np.dtype(x.dtype).name
            raise type_error(
                f"x and {name} must have one dtype, got x {want} and {name} {dtype}.",
                f"cast one of them, e.g. {name}.astype('{want}').",
            )
    if len(x.shape) != 4:
        raise value_error(
            f"x must have rank 4 ({layout}) or 3 (unbatched), got rank {len(x.shape)} "
            f"with shape {tuple(x.shape)}.",
            "add or fold batch axes with reshape.",
        )
    if len(weight.shape) != 4:
        raise value_error(
            "weight must have rank 4 (in_channels, out_channels // groups, kh, kw), "
            f"got rank {len(weight.shape)} with shape {tuple(weight.shape)}.",
            "reshape the weight.",
        )


def _check_channels(x: Any, weight: Any, bias: Any, groups: int, layout: str) -> None:
    channels = x.shape[1 if layout == "NCHW" else 3]
    c_in, c_out, k_h, k_w = weight.shape
    if channels != c_in:
        other = x.shape[3 if layout == "NCHW" else 1]
        hint = "weight is (in_channels, out_channels // groups, kh, kw)."
        if other == c_in:
            hint += (
                f" If x is {'NHWC' if layout == 'NCHW' else 'NCHW'}, say so by layout."
            )
        raise value_error(
            f"x and weight must agree on the input channels, got {channels} in x of "
            f"shape {tuple(x.shape)} ({layout}) and {c_in} in weight of shape "
            f"{tuple(weight.shape)}.",
            hint,
        )
    if min(c_in, c_out, k_h, k_w) < 1:
        raise value_error(
            f"weight must not be empty, got shape {tuple(weight.shape)}.",
            "give every axis of weight at least one element.",
        )
    if c_in % groups:
        raise value_error(
            f"groups must divide the input channels, got groups={groups} and "
            f"{c_in} channels.",
            f"use a divisor of {c_in}.",
        )
    if bias is not None and tuple(bias.shape) != (c_out * groups,):
        raise value_error(
            f"bias must have shape ({c_out * groups},) = (out_channels,), got "
            f"{tuple(bias.shape)} with weight {tuple(weight.shape)}, groups={groups}.",
            "pass one value per output channel.",
        )


def _check_symbolic(axis: str, n: Any, o: Any, s: int, extent: int, crop: Any) -> None:
    """An output of symbolic size must be known to hold all that is appended to it."""
    lo, hi = crop
    least = max(1, max(-lo, 0) + max(-hi, 0))
    try:
        if o >= least:
            return
    except InconclusiveDimensionOperation:
        pass
    needed = -(-(least + lo + hi - extent) // s) + 1
    raise value_error(
        f"the output {axis} {o} must be known to be at least {least}, for an input of "
        f"{n} and a crop of {crop}.",
        f"add a constraint, jax.export.symbolic_shape(..., constraints=['{n} >= "
        f"{needed}']).",
    )


def _check_sizes(spec: Spec, output_padding: tuple[int, int]) -> None:
    g = spec.geometry
    for axis, n, o, k, s, d, crop, op in zip(
        _AXES,
        spec.in_size,
        spec.out_size,
        spec.kernel_size,
        g.stride,
        g.dilation,
        g.crop,
        output_padding,
        strict=True,
    ):
        if isinstance(n, int) and n < 1:
            raise value_error(
                f"x must not be empty in space, got {axis} {n}.",
                "skip the call for empty images; an empty batch is allowed.",
            )
        if not isinstance(o, int):
            _check_symbolic(axis, n, o, s, d * (k - 1) + 1, crop)
        elif o < 1:
            raise value_error(
                f"the output {axis} would be {o}, from input {n}, kernel {k}, stride "
                f"{s}, dilation {d}, crop {crop} (output_padding {op}).",
                "use less padding, or a larger kernel, stride or input.",
            )
    for name, shape in (
        ("x", spec.x_shape),
        ("weight", spec.w_shape),
        ("y", spec.y_shape),
    ):
        if not all(isinstance(n, int) for n in shape):
            continue
        # An empty batch does not make the rest of a shape fit.
        size = math.prod(max(n, 1) for n in shape) * spec.itemsize
        if size > _MAX_BYTES or max(shape) > _MAX_BYTES:
            raise value_error(
                f"{name} of shape {shape} and dtype {spec.dtype} overflows a 64-bit "
                f"byte count: {size} > {_MAX_BYTES}.",
                "use smaller sizes, strides or dilations.",
            )
    for axis, o in zip(_AXES, spec.out_size, strict=True):
        if isinstance(o, int) and o > _MAX_INT:
            raise value_error(
                f"the output {axis} {o} exceeds {_MAX_INT}, the longest axis allowed.",
                "use smaller sizes, strides or dilations.",
            )


def parse_geometry(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
    output_size: Any = None,
    layout: Any = "NCHW",
    precision: Any = None,
) -> Spec:
    """Parses and checks a whole call.

    Args:
        x: anything with the shape and dtype of a batched input.
        weight: likewise, (in_channels, out_channels // groups, kh, kw).
        bias: likewise, (out_channels,), or None.
        stride: see `jax_transconv.conv_transpose2d`, as for all that follow.
        padding: see there.
        output_padding: see there.
        dilation: see there.
        groups: see there.
        output_size: see there.
        layout: see there.
        precision: see there.

    Returns:
        The problem, checked.

    Raises:
        ValueError: if a value breaks a rule; the message names both values.
        TypeError: if an argument has the wrong structure or dtype.
    """
    if layout not in LAYOUTS:
        raise value_error(
            f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.",
            "layout is the memory order of x and of the result.",
        )
    _check_arrays(x, weight, bias, layout)
    groups = parse_integer("groups", groups)
    if groups < 1:
        raise value_error(f"groups must be positive, got {groups}.", "use groups >= 1.")
    _check_channels(x, weight, bias, groups, layout)

    stride = parse_pair("stride", stride, 1)
    dilation = parse_pair("dilation", dilation, 1)
    output_padding = _parse_output_padding(output_padding, stride, dilation)
    kernel_size = tuple(int(k) for k in weight.shape[2:])
    extents = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True))
    crop = _parse_crop(padding, stride, extents)
    if isinstance(padding, str) and output_padding != (0, 0):
        raise value_error(
            f"output_padding must be 0 with padding={padding!r}, got {output_padding}.",
            "use output_size, or integer padding.",
        )
    geometry = Geometry(
        stride=stride,
        dilation=dilation,
        crop=((crop[0][0], crop[0][1]), (crop[1][0], crop[1][1])),
        groups=groups,
        layout=layout,
        precision=parse_precision(precision),
    )
    spec = Spec.of_forward(geometry, x, weight)
    if output_size is not None:
        if output_padding != (0, 0):
            raise value_error(
                "output_size and output_padding exclude each other, got output_size="
                f"{output_size!r} and output_padding={output_padding}.",
                "pass one of them.",
            )
        base = spec.out_size
        size = _parse_output_size(output_size, base, stride, spec.in_size)
        output_padding = (size[0] - base[0], size[1] - base[1])
    geometry = dataclasses.replace(
        geometry,
        crop=tuple(
            (lo, hi - op) for (lo, hi), op in zip(crop, output_padding, strict=True)
        ),
    )
    spec = dataclasses.replace(spec, geometry=geometry)
    _check_sizes(spec, output_padding)
    return spec
