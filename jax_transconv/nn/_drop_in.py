"""What stands in for other packages' own layers: their arguments, in our terms.

Flax holds a kernel as (*spatial, C_in, C_out) and does not flip it, or, with
`transpose_kernel`, as (*spatial, C_out, C_in), which is flipped. Explicit padding pads
the stretched input, so that it is our crop ``extent - 1 - padding``. Equinox and Haiku
hold a kernel as that of an ordinary convolution of the stretched input, with the output
channels first; Equinox's padding is our crop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_transconv.api import conv_transpose1d, conv_transpose2d
from jax_transconv.spec import DTYPES, valid_crop

OP = "ConvTranspose"

# Forward mode works with the layers that these replace, so it must with ours.
_AUTODIFF = "both"


def takes(kernel_size: int | Sequence[int], preferred_element_type: Any) -> bool:
    """Whether a layer is ours; Flax's own code runs what is not."""
    rank = 1 if isinstance(kernel_size, int) else len(kernel_size)
    return rank in (1, 2) and preferred_element_type is None


def takes_operands(rank: int, *operands: jax.Array | None) -> bool:
    """Whether arrays of a layer of so many axes are ours, if they are of one dtype."""
    dtypes = {a.dtype.name for a in operands if a is not None}
    return rank in (1, 2) and len(dtypes) == 1 and dtypes <= set(DTYPES)


def convolve(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    *,
    channels_last: bool,
    **arguments: Any,
) -> jax.Array:
    """`conv_transpose1d` or `conv_transpose2d`, as the rank of the weight says."""
    rank = weight.ndim - 2
    layout = ("NLC", "NHWC") if channels_last else ("NCL", "NCHW")
    function = conv_transpose1d if rank == 1 else conv_transpose2d
    return function(
        x, weight, bias, layout=layout[rank - 1], autodiff=_AUTODIFF, **arguments
    )


def weight_of_convolution(kernel: jax.Array, groups: int) -> jax.Array:
    """Our weight for the kernel of an ordinary convolution of the stretched input.

    Args:
        kernel: (C_out, C_in // groups, *spatial), not flipped.
        groups: number of channel groups.

    Returns:
        (C_in, C_out // groups, *spatial), flipped.
    """
    kernel = jnp.flip(kernel, tuple(range(2, kernel.ndim)))
    c_out, c_in, *size = kernel.shape  # c_in of one group
    kernel = kernel.reshape(groups, c_out // groups, c_in, *size)
    kernel = jnp.swapaxes(kernel, 1, 2)
    return kernel.reshape(groups * c_in, c_out // groups, *size)


def masked(kernel: jax.Array, mask: Any, layer: str = OP) -> jax.Array:
    """The kernel with its masked elements at zero."""
    if mask is None:
        return kernel
    if mask.shape != kernel.shape:
        raise ValueError(
            f"{layer}: mask must have the shape of the kernel, got mask {mask.shape} "
            f"and kernel {kernel.shape}.\nResolution: make the mask with that shape."
        )
    return kernel * mask


def conv_transpose(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    *,
    strides: int | Sequence[int] | None,
    padding: Any,
    kernel_dilation: int | Sequence[int] | None,
    transpose_kernel: bool,
    precision: Any,
) -> jax.Array:
    """What both of Flax's layers compute, with its numbers.

    Args:
        x: (*batch, *spatial, C_in), with one or two spatial axes.
        kernel: (*spatial, C_in, C_out); C_out first with `transpose_kernel`.
        bias: (C_out,) or None.
        strides: an int, one a spatial axis, or None for 1.
        padding: "SAME", "VALID", "CIRCULAR", an int, or an int or a pair an axis.
        kernel_dilation: as `strides`.
        transpose_kernel: whether the kernel is that of the convolution which this layer
            transposes.
        precision: see `jax_transconv.conv_transpose2d`.

    Returns:
        (*batch, *spatial, C_out).

    Raises:
        ValueError: if a value is illegal.
        TypeError: if an argument has the wrong structure or dtype.
    """
    rank = kernel.ndim - 2
    stride = _per_axis("strides", strides, rank)
    dilation = _per_axis("kernel_dilation", kernel_dilation, rank)
    extents = [
        d * (k - 1) + 1 for d, k in zip(dilation, kernel.shape[:rank], strict=True)
    ]
    batch = _batch_axes(x, rank)
    x = x.reshape(math.prod(batch), *x.shape[len(batch) :])
    if padding == "CIRCULAR":
        x, crop = _wrap(x, stride, extents, transpose_kernel)
    else:
        crop = _crop(padding, extents)

    spatial = tuple(range(rank))
    if transpose_kernel:
        weight = kernel.transpose(rank + 1, rank, *spatial)
    else:
        weight = jnp.flip(kernel, spatial).transpose(rank, rank + 1, *spatial)
    y = convolve(
        x,
        weight,
        bias,
        stride=stride,
        padding=crop,
        dilation=dilation,
        channels_last=True,
        precision=precision,
    )
    return y.reshape(*batch, *y.shape[1:])


def _per_axis(name: str, value: int | Sequence[int] | None, rank: int) -> tuple:
    if value is None:
        value = 1
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(values) != rank:
        raise ValueError(
            f"{OP}: {name} must have one value for each of the kernel's {rank} axes, "
            f"got {len(values)}: {values}.\nResolution: pass an int or {rank} ints."
        )
    return values


def _batch_axes(x: jax.Array, rank: int) -> tuple[int, ...]:
    if x.ndim < rank + 1:
        raise ValueError(
            f"{OP}: inputs must have at least {rank + 1} axes for {rank} spatial ones, "
            f"got rank {x.ndim} with shape {x.shape}.\n"
            "Resolution: add the missing axes, or pass kernel_size as a tuple with one "
            "value for each spatial axis."
        )
    return x.shape[: x.ndim - rank - 1]


def _crop(padding: Any, extents: Sequence[int]) -> Any:
    """Flax's padding as ours: a word that means the same, or crops."""
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(
                f"{OP}: padding must be 'SAME', 'VALID', 'CIRCULAR', an int, or an int "
                f"or a pair for each spatial axis, got {padding!r}.\n"
                "Resolution: use one of these forms."
            )
        return padding
    rank = len(extents)
    items = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    if len(items) != rank:
        raise ValueError(
            f"{OP}: padding must have one int or pair for each of the kernel's {rank} "
            f"axes, got {len(items)}: {padding!r}.\n"
            "Resolution: write it as ((low, high), ...)."
        )
    pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in items]
    return [
        tuple(e - 1 - p for p in pair) for e, pair in zip(extents, pairs, strict=True)
    ]


def _wrap(
    x: jax.Array, stride: Sequence[int], extents: Sequence[int], transpose_kernel: bool
) -> tuple[jax.Array, list[tuple[int, int]]]:
    """Circular padding: the input continued periodically, and the crop of one period.

    Flax wraps the result of "VALID", padded to a whole number of periods ``P = n * s``.
    The element that it puts at ``j`` sums those of the full result at ``j + shift`` and
    at every whole number of periods from there. So does a periodic input, of which as
    many elements are needed at each end as the kernel reaches from one period.
    """
    if 0 in x.shape[1:-1]:
        raise ValueError(
            f"{OP}: inputs must not be empty in space, got {x.shape[1:-1]}.\n"
            "Resolution: skip the call for empty images; an empty batch is allowed."
        )
    pads, crops = [], []
    for n, s, e in zip(x.shape[1:-1], stride, extents, strict=True):
        period = n * s
        valid = (n - 1) * s + e - valid_crop(s, e)[0] - valid_crop(s, e)[1]
        missing = -(valid - period) % (2 * period)
        # For kernels of even size, which end gets the odd position is a convention.
        front = missing // 2 if transpose_kernel else (missing + 1) // 2
        shift = -front % period
        before = max(-((shift - e + 1) // s), 0)
        after = max((shift + period - 1) // s - n + 1, 0)
        full = (n + before + after - 1) * s + e
        low = shift + before * s
        pads.append((before, after))
        crops.append((low, full - period - low))
    return jnp.pad(x, [(0, 0), *pads, (0, 0)], mode="wrap"), crops
