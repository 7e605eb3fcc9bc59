"""The layers for Flax NNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer, zeros
from jax.typing import ArrayLike, DTypeLike

from jax_transconv.nn import _common, _drop_in
from jax_transconv.nn._common import torch_init

from flax import nnx  # isort: skip  (after the check for it in _common)

__all__ = ["ConvTranspose", "ConvTranspose2d", "torch_init"]


class ConvTranspose2d(nnx.Module):
    """A transposed 2-D convolution with PyTorch's meaning of every argument.

    An output size is ``(in - 1) * strides - lo - hi + dilation * (k - 1) + 1``, where
    integer padding ``p`` is the crop ``lo = p``, ``hi = p - output_padding``: the
    opposite of `flax.nnx.ConvTranspose`, in which padding makes the output larger.

    The parameters are `kernel`, in torch's axes (in_features, out_features // groups,
    kh, kw) for both layouts, and `bias` (out_features,). A torch checkpoint fits
    without any change.

    Args:
        in_features: input channels.
        out_features: output channels.
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
            one output, in_features // groups * kh * kw. `torch_init` gives torch's.
        bias_init: initializer of the bias; by default zeros. Takes `torch_init` too.
        backend: see `jax_transconv.conv_transpose2d`.
        autodiff: "both" allows forward mode (`jax.jvp` and its like); see there.
        rngs: where the keys come from.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> layer = ConvTranspose2d(3, 8, 4, strides=2, padding=1, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 16, 16, 3), jnp.float32)).shape
        (1, 32, 32, 8)
        >>> layer.kernel.shape
        (3, 8, 4, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        *,
        padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        use_bias: bool = True,
        layout: str = "NHWC",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer | None = None,
        bias_init: Initializer = zeros,
        backend: str = "auto",
        autodiff: str = "reverse",
        rngs: nnx.Rngs,
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.kernel_size = _common.freeze(kernel_size)
        self.strides = _common.freeze(strides)
        self.padding = _common.freeze(padding)
        self.output_padding = _common.freeze(output_padding)
        self.dilation = _common.freeze(dilation)
        self.groups = groups
        self.use_bias = use_bias
        self.layout = layout
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.kernel_init = kernel_init
        self.bias_init = bias_init
        self.backend = backend
        self.autodiff = autodiff
        _common.check(self, out_features, in_features)

        shape = _common.kernel_shape(self, in_features, out_features)
        kernel = _common.kernel_init(self)(rngs.params(), shape, param_dtype)
        self.kernel = nnx.Param(kernel)
        self.bias: nnx.Param[jax.Array] | None
        if use_bias:
            init = _common.bias_init(self, shape)
            self.bias = nnx.Param(init(rngs.params(), (out_features,), param_dtype))
        else:
            self.bias = nnx.data(None)

    def __call__(
        self, x: ArrayLike, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """Applies the layer.

        Args:
            x: (*batch, H, W, in_features), or (*batch, in_features, H, W) with layout
                "NCHW". There may be any number of batch axes, or none.
            output_size: (H', W') in place of the layer's `output_padding`.

        Returns:
            (*batch, H', W', out_features), or (*batch, out_features, H', W').

        Raises:
            ValueError: if a value breaks a rule of `jax_transconv.conv_transpose2d`.
            TypeError: if an argument has the wrong structure or dtype.
        """
        x = jnp.asarray(x)
        _common.in_features(self, x)
        bias = None if self.bias is None else self.bias[...]
        return _common.apply(self, x, self.kernel[...], bias, output_size)


class ConvTranspose(nnx.ConvTranspose):
    """`flax.nnx.ConvTranspose` on our kernels: a drop-in replacement.

    Arguments, parameters and numbers are Flax's, so that changing one import is enough
    and old checkpoints load: the kernel is (*kernel_size, in_features, out_features),
    not flipped, or (*kernel_size, out_features, in_features) with `transpose_kernel`,
    and explicit padding pads the stretched input. One and two spatial axes are ours;
    three, and any `preferred_element_type`, run Flax's own code. Forward and reverse
    mode both work.

    One thing is not Flax's: an output without positions, or an image without any, is a
    ValueError here. An empty batch is none.

    `ConvTranspose2d` has PyTorch's meaning of the arguments, and groups.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> layer = ConvTranspose(3, 8, (4, 4), strides=(2, 2), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 16, 16, 3), jnp.float32)).shape
        (1, 32, 32, 8)
        >>> layer.kernel.shape
        (4, 4, 3, 8)
    """

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: (*batch, *spatial, in_features), with any number of batch axes, or
                none.

        Returns:
            (*batch, *spatial, out_features).

        Raises:
            ValueError: if a value is illegal, or the image or the output is empty.
            TypeError: if an argument has the wrong structure or dtype.
        """
        x = jnp.asarray(inputs)
        if not _drop_in.takes(self.kernel_size, self.preferred_element_type):
            return super().__call__(x)
        kernel = _drop_in.masked(self.kernel[...], self.mask)
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((x, kernel, bias), dtype=self.dtype)
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
