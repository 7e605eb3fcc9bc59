"""The layers for Haiku."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transconv.nn import _drop_in

try:
    import haiku
except ImportError as error:
    raise ImportError(
        "jax_transconv.nn: haiku needs Haiku, which is not installed.\n"
        "Resolution: pip install 'jax-transconv[haiku]'."
    ) from error

__all__ = ["Conv1DTranspose", "Conv2DTranspose", "ConvNDTranspose"]

Crop = str | list[tuple[int, int]]


class _Ours(haiku.ConvNDTranspose):
    """The call that takes the place of Haiku's own."""

    output_shape: Any

    def __call__(self, inputs: jax.Array, *, precision: Any = None) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: (N, *spatial, C), or (N, C, *spatial) where the data format has
                channels first; N may be absent.
            precision: see `jax_transconv.conv_transpose2d`.

        Returns:
            The output, in the axes of the input.

        Raises:
            ValueError: if a value is illegal, or the image or the output is empty.
            TypeError: if an argument has the wrong structure or dtype.
        """
        x = jnp.asarray(inputs)
        rank = self.num_spatial_dims
        if not _drop_in.takes_operands(rank, x):
            return super().__call__(x, precision=precision)
        if x.ndim not in (rank + 1, rank + 2):
            raise ValueError(
                f"{type(self).__name__}: inputs must have rank {rank + 2}, or "
                f"{rank + 1} without a batch axis, got rank {x.ndim} with shape "
                f"{x.shape}.\nResolution: add or fold batch axes with reshape."
            )
        batched = x.ndim == rank + 2
        x = x if batched else x[None]
        last = self.channel_index == -1
        kernel = self._kernel(x.shape[self.channel_index], x.dtype)
        bias = self._bias(last, x.dtype)
        y = _drop_in.convolve(
            x,
            _drop_in.weight_of_convolution(jnp.moveaxis(kernel, (-2, -1), (0, 1)), 1),
            bias,
            stride=self.stride,
            padding=self._crop(x.shape[1:-1] if last else x.shape[2:]),
            channels_last=last,
            precision=precision,
        )
        return y if batched else y[0]

    def _kernel(self, channels: int, dtype: Any) -> jax.Array:
        """The parameter `w`: (*spatial, C_out, C_in), not flipped."""
        shape = (*self.kernel_shape, self.output_channels, channels)
        init = self.w_init
        if init is None:
            fan = math.prod(self.kernel_shape) * channels
            init = haiku.initializers.TruncatedNormal(stddev=1 / np.sqrt(fan))
        kernel = haiku.get_parameter("w", shape, dtype, init=init)
        return _drop_in.masked(kernel, self.mask, type(self).__name__)

    def _bias(self, channels_last: bool, dtype: Any) -> jax.Array | None:
        """The parameter `b`, which has axes of length 1 after the channels."""
        if not self.with_bias:
            return None
        ones = () if channels_last else (1,) * self.num_spatial_dims
        shape = (self.output_channels, *ones)
        return haiku.get_parameter("b", shape, dtype, init=self.b_init).reshape(-1)

    def _crop(self, sizes: Sequence[int]) -> Crop:
        """What is cut off the full result: Haiku pads the stretched input."""
        if self.output_shape is not None:
            axes = zip(
                sizes, self.output_shape, self.kernel_shape, self.stride, strict=True
            )
            return [self._crop_to(*axis) for axis in axes]
        if isinstance(self.padding, str):
            return self.padding
        return [
            (k - 1 - low, k - 1 - high)
            for k, (low, high) in zip(self.kernel_shape, self.padding, strict=True)
        ]

    def _crop_to(self, size: int, wanted: int, k: int, stride: int) -> tuple[int, int]:
        """The crop of one axis to a wanted size, from which `size` must follow."""
        reach = k if self.padding == "VALID" else 1
        fitting = (wanted - reach) // stride + 1
        if size != fitting:
            raise ValueError(
                f"{type(self).__name__}: output_shape {wanted} with padding "
                f"{self.padding!r} needs an input of {fitting} positions, got {size}.\n"
                "Resolution: pass the output_shape that belongs to the input."
            )
        surplus = (size - 1) * stride + k - wanted
        low = 0 if self.padding == "VALID" else max(surplus, 0) // 2
        return low, surplus - low


class ConvNDTranspose(_Ours):
    """`haiku.ConvNDTranspose` on our kernels: a drop-in replacement.

    Arguments, parameters, their names and initial values, and numbers are Haiku's, so
    that changing one import is enough and old checkpoints load. One and two spatial
    axes are ours; three, and inputs of dtypes that we lack, run Haiku's own code.
    Forward and reverse mode both work.

    Example:
        >>> import haiku, jax, jax.numpy as jnp
        >>> up = haiku.transform(lambda x: Conv2DTranspose(8, 4, stride=2)(x))
        >>> x = jnp.ones((1, 16, 16, 3))
        >>> params = up.init(jax.random.key(0), x)
        >>> up.apply(params, None, x).shape
        (1, 32, 32, 8)
        >>> jax.tree.map(jnp.shape, params)
        {'conv2_d_transpose': {'b': (8,), 'w': (4, 4, 8, 3)}}
    """


class Conv1DTranspose(_Ours, haiku.Conv1DTranspose):
    """`haiku.Conv1DTranspose` on our kernels; see `ConvNDTranspose`."""


class Conv2DTranspose(_Ours, haiku.Conv2DTranspose):
    """`haiku.Conv2DTranspose` on our kernels; see `ConvNDTranspose`."""
