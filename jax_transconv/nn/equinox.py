"""The layers for Equinox."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transconv.nn import _drop_in

try:
    from equinox import nn
except ImportError as error:
    raise ImportError(
        "jax_transconv.nn: equinox needs Equinox, which is not installed.\n"
        "Resolution: pip install 'jax-transconv[equinox]'."
    ) from error

__all__ = ["ConvTranspose", "ConvTranspose1d", "ConvTranspose2d"]

Crop = list[tuple[int, int]]


class _Ours(nn.ConvTranspose):
    """The call that takes the place of Equinox's own."""

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Applies the layer.

        Args:
            x: (in_channels, *spatial), without a batch axis: use `jax.vmap`.
            key: ignored, as by Equinox.

        Returns:
            (out_channels, *spatial).

        Raises:
            ValueError: if a value is illegal, or the image or the output is empty.
            TypeError: if an argument has the wrong structure or dtype.
        """
        rank = self.num_spatial_dims
        if x.ndim != rank + 1:
            raise ValueError(
                f"ConvTranspose: x must have rank {rank + 1} (in_channels, *spatial), "
                f"got rank {x.ndim} with shape {x.shape}.\n"
                "Resolution: use jax.vmap for batch axes."
            )
        if not _drop_in.takes_operands(rank, x, self.weight, self.bias):
            return super().__call__(x, key=key)
        crop = self._crop()
        if self.padding_mode == "CIRCULAR":
            x, crop = self._wrap(x, crop)
        return _drop_in.convolve(
            x,
            _drop_in.weight_of_convolution(self.weight, self.groups),
            None if self.bias is None else self.bias.reshape(-1),
            stride=self.stride,
            padding=crop,
            dilation=self.dilation,
            groups=self.groups,
            channels_last=False,
        )

    def _reach(self) -> list[int]:
        """How far a kernel reaches beyond its first element, on each axis."""
        pairs = zip(self.kernel_size, self.dilation, strict=True)
        return [d * (k - 1) for k, d in pairs]

    def _crop(self) -> Crop:
        """What is cut off the full result, on each axis."""
        crop = []
        axes = zip(self._reach(), self.stride, self.output_padding, strict=True)
        for axis, (reach, stride, extra) in enumerate(axes):
            if self.padding == "VALID":
                low = high = 0
            elif isinstance(self.padding, str):
                # Of the input of a convolution whose output is ceil(input / stride).
                total = reach + 1 - stride + extra
                extra = max(-total, 0)
                low = (max(total, 0) + (self.padding == "SAME_LOWER")) // 2
                high = max(total, 0) - low
            else:
                low, high = self.padding[axis]
            crop.append((low, high - extra))
        return crop

    def _wrap(self, x: jax.Array, crop: Crop) -> tuple[jax.Array, Crop]:
        """The input continued periodically as far as outputs reach, and the new crop.

        Equinox counts whole elements of the input in the padding of the stretched one.
        """
        pads, rest = [(0, 0)], []
        for reach, stride, ends in zip(self._reach(), self.stride, crop, strict=True):
            padding = [reach - end for end in ends]
            pads.append((padding[0] // stride, padding[1] // stride))
            rest.append((reach - padding[0] % stride, reach - padding[1] % stride))
        return jnp.pad(x, pads, mode="wrap"), rest


class ConvTranspose(_Ours):
    """`equinox.nn.ConvTranspose` on our kernels: a drop-in replacement.

    Arguments, parameters, their initial values and numbers are Equinox's, so that
    changing one import is enough and old checkpoints load. One and two spatial axes
    are ours; three, and arrays of dtypes that we lack, run Equinox's own code. Forward
    and reverse mode both work.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> layer = ConvTranspose2d(3, 8, 4, stride=2, padding=1, key=jax.random.key(0))
        >>> jax.vmap(layer)(jnp.ones((1, 3, 16, 16))).shape
        (1, 8, 32, 32)
    """


class ConvTranspose1d(_Ours, nn.ConvTranspose1d):
    """`equinox.nn.ConvTranspose1d` on our kernels; see `ConvTranspose`."""


class ConvTranspose2d(_Ours, nn.ConvTranspose2d):
    """`equinox.nn.ConvTranspose2d` on our kernels; see `ConvTranspose`."""
