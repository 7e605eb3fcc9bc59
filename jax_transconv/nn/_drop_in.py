"""What stands in for Flax's own `ConvTranspose`: its arguments, in our terms.

Flax holds a kernel as (*spatial, C_in, C_out) and does not flip it, or, with
`transpose_kernel`, as (*spatial, C_out, C_in), which is flipped. Explicit padding pads
the stretched input, so that it is our crop ``extent - 1 - padding``. A 1-D image is one
of height 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_transconv.api import conv_transpose2d
from jax_transconv.spec import valid_crop

OP = "ConvTranspose"

# Forward mode works with Flax's layers, so it must with what replaces them.
_AUTODIFF = "both"


def takes(kernel_size: int | Sequence[int], preferred_element_type: Any) -> bool:
    """Whether a layer is ours; Flax's own code runs what is not."""
    rank = 1 if isinstance(kernel_size, int) else len(kernel_size)
    return rank in (1, 2) and preferred_element_type is None


def masked(kernel: jax.Array, mask: Any) -> jax.Array:
    """The kernel with its masked elements at zero."""
    if mask is None:
        return kernel
    if mask.shape != kernel.shape:
        raise ValueError(
            f"{OP}: mask must have the shape of the kernel, got mask {mask.shape} and "
            f"kernel {kernel.shape}.\nResolution: make the mask with that shape."
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
    """What both layers compute, with Flax's numbers.

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

    if rank == 1:  # an axis of height 1
        x, kernel = x[:, None], kernel[None]
        stride, dilation = (1, *stride), (1, *dilation)
        crop = crop if isinstance(crop, str) else [(0, 0), *crop]
    if transpose_kernel:
        weight = kernel.transpose(3, 2, 0, 1)
    else:
        weight = kernel[::-1, ::-1].transpose(2, 3, 0, 1)
    y = conv_transpose2d(
        x,
        weight,
        bias,
        stride=stride,
        padding=crop,
        dilation=dilation,
        layout="NHWC",
        precision=precision,
        autodiff=_AUTODIFF,
    )
    return y.reshape(*batch, *y.shape[3 - rank :])


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
