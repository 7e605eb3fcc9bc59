"""The layers for Flax Linen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer, zeros
from jax.typing import ArrayLike, DTypeLike

from jax_transconv.nn import _common, _drop_in
from jax_transconv.nn._common import torch_init

from flax import linen as nn  # isort: skip  (after the check for it in _common)

__all__ = ["ConvTranspose", "ConvTranspose2d", "torch_init"]


class ConvTranspose2d(nn.Module):
    """A transposed 2-D convolution with PyTorch's meaning of every argument.

    An output size is ``(in - 1) * strides - lo - hi + dilation * (k - 1) + 1``, where
    integer padding ``p`` is the crop ``lo = p``, ``hi = p - output_padding``: the
    opposite of `flax.linen.ConvTranspose`, in which padding makes the output larger.

    The parameters are `kernel`, in torch's axes (Cin, features // groups, kh, kw) for
    both layouts, and `bias` (features,). A torch checkpoint fits without any change.

    Attributes:
        features: output channels.
        kernel_size: an int, or (kh, kw).
        strides: an int or a pair.
        padding: an int, a pair, signed ((lo, hi), (lo, hi)) crops, or "SAME" or "VALID"
            as JAX means them.
        output_padding: an int or a pair, below stride or below dilation.
        dilation: an int or a pair.
        groups: number of channel groups.
        use_bias: whether to add a bias.
        layout: "NHWC" or "NCHW": the axes of input and output after any batch axes.
        dtype: dtype of the computation; by default that of input and parameters
            promoted.
        param_dtype: dtype of the parameters.
        precision: see `jax_transconv.conv_transpose2d`.
        kernel_init: initializer of the kernel; by default LeCun normal with the fan of
            one output, Cin // groups * kh * kw. `torch_init` gives torch's.
        bias_init: initializer of the bias; by default zeros. Takes `torch_init` too.
        backend: see `jax_transconv.conv_transpose2d`.
        autodiff: "both" allows forward mode (`jax.jvp` and its like); see there.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> layer = ConvTranspose2d(features=8, kernel_size=4, strides=2, padding=1)
        >>> x = jnp.ones((1, 16, 16, 3), jnp.float32)
        >>> y, variables = layer.init_with_output(jax.random.key(0), x)
        >>> y.shape
        (1, 32, 32, 8)
        >>> jax.tree.map(jnp.shape, variables)
        {'params': {'bias': (8,), 'kernel': (3, 8, 4, 4)}}
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] = 1
    padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0
    output_padding: int | Sequence[int] = 0
    dilation: int | Sequence[int] = 1
    groups: int = 1
    use_bias: bool = True
    layout: str = "NHWC"
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: Any = None
    kernel_init: Initializer | None = None
    bias_init: Initializer = zeros
    backend: str = "auto"
    autodiff: str = "reverse"

    def __post_init__(self) -> None:
        _common.check(self, self.features)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, x: ArrayLike, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """Applies the layer.

        Args:
            x: (*batch, H, W, Cin), or (*batch, Cin, H, W) with layout "NCHW". There may
                be any number of batch axes, or none.
            output_size: (H', W') in place of the layer's `output_padding`.

        Returns:
            (*batch, H', W', features), or (*batch, features, H', W').

        Raises:
            ValueError: if a value breaks a rule of `jax_transconv.conv_transpose2d`.
            TypeError: if an argument has the wrong structure or dtype.
        """
        x = jnp.asarray(x)
        shape = _common.kernel_shape(self, _common.in_features(self, x), self.features)
        kernel = self.param(
            "kernel", _common.kernel_init(self), shape, self.param_dtype
        )
        bias = None
        if self.use_bias:
            bias_init = _common.bias_init(self, shape)
            bias = self.param("bias", bias_init, (self.features,), self.param_dtype)
        return _common.apply(self, x, kernel, bias, output_size)


class ConvTranspose(nn.ConvTranspose):
    """`flax.linen.ConvTranspose` on our kernels: a drop-in replacement.

    Arguments, parameters and numbers are Flax's, so that changing one import is enough
    and old checkpoints load: the kernel is (*kernel_size, Cin, features), not flipped,
    or (*kernel_size, features, Cin) with `transpose_kernel`, and explicit padding pads
    the stretched input. One and two spatial axes are ours; three, and any
    `preferred_element_type`, run Flax's own code. Forward and reverse mode both work.

    One thing is not Flax's: an output without positions, or an image without any, is a
    ValueError here. An empty batch is none.

    `ConvTranspose2d` has PyTorch's meaning of the arguments, and groups.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> layer = ConvTranspose(features=8, kernel_size=(4, 4), strides=(2, 2))
        >>> x = jnp.ones((1, 16, 16, 3), jnp.float32)
        >>> y, variables = layer.init_with_output(jax.random.key(0), x)
        >>> y.shape
        (1, 32, 32, 8)
        >>> jax.tree.map(jnp.shape, variables)
        {'params': {'bias': (8,), 'kernel': (4, 4, 3, 8)}}
    """

    @nn.compact
    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: (*batch, *spatial, Cin), with any number of batch axes, or none.

        Returns:
            (*batch, *spatial, features).

        Raises:
            ValueError: if a value is illegal, or the image or the output is empty.
            TypeError: if an argument has the wrong structure or dtype.
        """
        x = jnp.asarray(inputs)
        if not _drop_in.takes(self.kernel_size, self.preferred_element_type):
            return super().__call__(x)
        size = self.kernel_size
        channels = (x.shape[-1], self.features)
        shape = (
            *((size,) if isinstance(size, int) else size),
            *(channels[::-1] if self.transpose_kernel else channels),
        )
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        kernel = _drop_in.masked(kernel, self.mask)
        bias = None
        if self.use_bias:
            bias = self.param(
                "bias", self.bias_init, (self.features,), self.param_dtype
            )
        x, kernel, bias = self.promote_dtype(x, kernel, bias, dtype=self.dtype)
        assert x is not None
        assert kernel is not None
        return _drop_in.conv_transpose(
            x,
            kernel,
            bias,
            strides=self.strides,
            padding=self.padding,
            kernel_dilation=self.kernel_dilation,
            transpose_kernel=self.transpose_kernel,
            precision=self.precision,
        )
