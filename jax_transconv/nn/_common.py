"""All that the two Flax layers share: every decision and every number.

The layers themselves only hold parameters, each in the way of its own framework.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from jax_transconv.api import conv_transpose2d
from jax_transconv.spec import parse_integer, parse_pair

try:
    from flax.linen.dtypes import promote_dtype
except ImportError as error:
    raise ImportError(
        "jax_transconv.nn: linen and nnx need Flax, which is not installed.\n"
        "Resolution: pip install 'jax-transconv[flax]'."
    ) from error

__all__ = ["TorchInit", "torch_init"]

OP = "ConvTranspose2d"


@dataclasses.dataclass(frozen=True)
class TorchInit:
    """The distribution of torch's initial parameters; see `torch_init`.

    Attributes:
        fan: out_channels // groups * kh * kw; None to read it from a kernel's shape.
    """

    fan: int | None = None

    def __call__(
        self,
        key: jax.Array,
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
        out_sharding: Any = None,
    ) -> jax.Array:
        """Draws uniformly in +-1 / sqrt(fan)."""
        fan = self.fan
        if fan is None:
            if len(shape) != 4:
                raise ValueError(
                    "torch_init: the fan must be given for a shape that is not a "
                    f"kernel's (cin, cout // groups, kh, kw), got {tuple(shape)}.\n"
                    "Resolution: torch_init(fan=cout // groups * kh * kw)."
                )
            fan = math.prod(shape[1:])
        bound = 1 / math.sqrt(fan)
        kind = jnp.float32 if dtype is None else dtype
        return jax.random.uniform(
            key, tuple(shape), kind, -bound, bound, out_sharding=out_sharding
        )


def torch_init(fan: int | None = None) -> TorchInit:
    """An initializer with the distribution of ``torch.nn.ConvTranspose2d``.

    That is Kaiming uniform with ``a = sqrt(5)`` and torch's fan, out_channels //
    groups * kh * kw: uniform in ``+-1 / sqrt(fan)``, for the kernel and for the bias.
    For torch's very numbers put the arrays of `jax_transconv.torch_compat.init` in
    place of the parameters: kernels have torch's axes.

    Args:
        fan: the fan. By default it is that of the layer whose `kernel_init` or
            `bias_init` this is.

    Returns:
        The initializer.

    Example:
        >>> import jax
        >>> torch_init()(jax.random.key(0), (3, 8, 4, 4)).shape
        (3, 8, 4, 4)
    """
    return TorchInit(fan)


class Layer(Protocol):
    """What the shared code reads of a layer."""

    @property
    def kernel_size(self) -> Any: ...
    @property
    def strides(self) -> Any: ...
    @property
    def padding(self) -> Any: ...
    @property
    def output_padding(self) -> Any: ...
    @property
    def dilation(self) -> Any: ...
    @property
    def groups(self) -> int: ...
    @property
    def use_bias(self) -> bool: ...
    @property
    def layout(self) -> str: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def precision(self) -> Any: ...
    @property
    def kernel_init(self) -> Initializer | None: ...
    @property
    def bias_init(self) -> Initializer: ...
    @property
    def backend(self) -> str: ...
    @property
    def autodiff(self) -> str: ...


def check(layer: Layer, features: int, in_features: int | None = None) -> None:
    """Refuses at construction what no input could make right.

    Args:
        layer: the layer.
        features: output channels.
        in_features: input channels, where they are known.
    """
    parse_pair("kernel_size", layer.kernel_size, 1)
    if parse_integer("groups", layer.groups) < 1:
        raise ValueError(
            f"{OP}: groups must be positive, got {layer.groups}.\n"
            "Resolution: use groups >= 1."
        )
    named = {"out_features": features, "in_features": in_features}
    for name, value in named.items():
        if value is None:
            continue
        if parse_integer(name, value) < 1 or value % layer.groups:
            raise ValueError(
                f"{OP}: {name} must be a positive multiple of groups, got "
                f"{name}={value} and groups={layer.groups}.\n"
                f"Resolution: use a multiple of {layer.groups}, or other groups."
            )


def freeze(value: Any) -> Any:
    """Lists and arrays of integers as nested tuples, which can be hashed."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value


def in_features(layer: Layer, x: jax.Array) -> int:
    """Channels of an input."""
    if x.ndim < 3:
        axes = "channels, height, width"
        if layer.layout == "NHWC":
            axes = "height, width, channels"
        raise ValueError(
            f"{OP}: x must have at least 3 axes ({axes}), got rank {x.ndim} with shape "
            f"{x.shape}.\nResolution: add the missing axes."
        )
    return x.shape[-3 if layer.layout == "NCHW" else -1]


def kernel_shape(layer: Layer, in_features: int, features: int) -> tuple[int, ...]:
    """Shape of the kernel, which is torch's."""
    size = parse_pair("kernel_size", layer.kernel_size, 1)
    return (in_features, features // layer.groups, *size)


def kernel_init(layer: Layer) -> Initializer:
    """The layer's initializer of the kernel."""
    if layer.kernel_init is not None:
        return layer.kernel_init
    # `lecun_normal` with the fan that an output sees, Cin // groups * kh * kw: the
    # axis of the inputs is not divided by groups in this kernel, so the scale is.
    return jax.nn.initializers.variance_scaling(
        float(layer.groups), "fan_in", "truncated_normal", in_axis=0, out_axis=1
    )


def bias_init(layer: Layer, kernel_shape: Sequence[int]) -> Initializer:
    """The layer's initializer of the bias."""
    if layer.bias_init == TorchInit():
        return TorchInit(math.prod(kernel_shape[1:]))
    return layer.bias_init


def apply(
    layer: Layer,
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    output_size: Sequence[int] | None,
) -> jax.Array:
    """What both layers compute.

    Args:
        layer: the layer.
        x: (*batch, H, W, Cin), or (*batch, Cin, H, W) where the layout is "NCHW".
        kernel: (Cin, Cout // groups, kh, kw).
        bias: (Cout,) or None.
        output_size: (H', W') in place of the layer's output_padding, or None.

    Returns:
        The output, with the batch axes of x.
    """
    x, kernel, bias = promote_dtype(x, kernel, bias, dtype=layer.dtype)
    batch = x.shape[:-3]
    if len(batch) > 1:
        x = x.reshape(math.prod(batch), *x.shape[-3:])
    y = conv_transpose2d(
        x,
        kernel,
        bias,
        stride=layer.strides,
        padding=layer.padding,
        output_padding=0 if output_size is not None else layer.output_padding,
        dilation=layer.dilation,
        groups=layer.groups,
        output_size=output_size,
        layout=layer.layout,
        precision=layer.precision,
        backend=layer.backend,
        autodiff=layer.autodiff,
    )
    return y.reshape(*batch, *y.shape[-3:]) if len(batch) > 1 else y
