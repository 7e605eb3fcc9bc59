"""The public function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jax_transconv import plan
from jax_transconv.ffi.targets import PASSES
from jax_transconv.ops import autodiff, batching, lowering, primitives, sharding
from jax_transconv.spec import Geometry, parse_geometry, type_error, value_error

__all__ = ["Explanation", "conv_transpose1d", "conv_transpose2d", "explain"]

del batching, lowering  # imported for the rules that they register


def conv_transpose2d(
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
    layout: str = "NCHW",
    precision: Any = None,
    backend: str = "auto",
    autodiff: str = "reverse",
) -> jax.Array:
    r"""2-D transposed convolution with the semantics of PyTorch's `conv_transpose2d`.

    Every input position scatters the kernel, scaled, into the output:

    ``y[n, o, s*i + d*k - p] += x[n, c, i] * weight[c, o, k]``, plus ``bias[o]``,

    so that per axis ``out = (in - 1)*s - 2*p + d*(k - 1) + output_padding + 1``. It is
    the transpose (the input gradient) of the ordinary convolution with the same stride,
    padding and dilation (V. Dumoulin and F. Visin, "A guide to convolution arithmetic
    for deep learning", arXiv:1603.07285, relation 14), and the kernel is used as
    PyTorch uses it: a PyTorch weight gives PyTorch's numbers, unchanged.

    Args:
        x: input, (N, C_in, H, W), or (N, H, W, C_in) with ``layout="NHWC"``; the batch
            axis may be absent. float16, bfloat16, float32 or float64. An empty batch
            gives an empty result.
        weight: (C_in, C_out // groups, kH, kW) in either layout, of x's dtype.
        bias: (C_out,), of x's dtype, or None.
        stride: int or (height, width): distance between the kernels of two neighbours.
        padding: how much of each end of the full result is cut off. An int or a pair,
            as in PyTorch; or a signed crop ``((lo, hi), (lo, hi))``, where a negative
            number appends positions that hold only the bias; or "SAME" or "VALID" in
            the sense of `jax.lax.conv_transpose`.
        output_padding: extra positions at the high end, below stride or dilation.
        dilation: int or pair: distance between two kernel elements.
        groups: C_in and C_out fall into this many independent groups.
        output_size: (H_out, W_out), in place of output_padding.
        layout: "NCHW" or "NHWC": memory order of x and of the result.
        precision: error class of float32 products: None (what
            `jax.default_matmul_precision` says, else TF32 class on a GPU), "high",
            "highest" (as accurate as float32 multiply-adds), a `jax.lax.Precision`, or
            the name of a `jax.lax.DotAlgorithmPreset`. CPUs always compute in float32.
        backend: "auto" takes the row known or expected to be the fastest. "xla", "cpu",
            "cuda", or a row as `explain` names it, insist on one: it runs, or the call
            raises.
        autodiff: "reverse" has the fused gradient of weight and bias and refuses
            forward mode, as every `jax.custom_vjp` does; "both" allows `jax.jvp`,
            `jax.jacfwd`, `jax.linearize` and `jax.hessian`, too.

    Returns:
        The result, (N, C_out, H_out, W_out) or (N, H_out, W_out, C_out), in x's dtype.
        16-bit inputs are summed in float32 and rounded once.

    Raises:
        ValueError: if a value is illegal; the message names it and what would be legal.
        TypeError: if an argument has the wrong structure or dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax_transconv import conv_transpose2d
        >>> x = jnp.ones((1, 1, 2, 2))
        >>> conv_transpose2d(x, jnp.ones((1, 1, 2, 2)), stride=2).shape
        (1, 1, 4, 4)
        >>> float(conv_transpose2d(x, jnp.ones((1, 1, 3, 3)), padding=1).sum())
        16.0
    """
    x, weight, bias = (_as_array(n, a) for n, a in _named(x, weight, bias))
    unbatched = x.ndim == 3
    if unbatched:
        x = x[None]
    spec = _parse(
        x,
        weight,
        bias,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        output_size=output_size,
        layout=layout,
        precision=precision,
        backend=backend,
        autodiff=autodiff,
    )
    _check_devices(x, weight, bias)
    run: Any = _conv if autodiff == "reverse" else _forward
    run = functools.partial(run, spec.geometry, backend)
    if target := sharding.output_sharding(spec, x, weight):
        # The type of y is settled here; inside, XLA partitions as on any other mesh.
        axes = target.mesh.explicit_axes
        run = jax.sharding.auto_axes(run, axes=axes, out_sharding=target)
    operands = (x, weight) if bias is None else (x, weight, bias)
    # Before the custom_vjp: the transpose of this cast sums over the manual axes.
    y = run(*sharding.vary_alike(operands))
    return y[0] if unbatched else y


def _conv(geometry: Geometry, backend: str, x: Any, w: Any, b: Any = None) -> Any:
    return autodiff.conv(geometry, backend, x, w, b)


def _forward(geometry: Geometry, backend: str, x: Any, w: Any, b: Any = None) -> Any:
    return primitives.forward(x, w, b, geometry, backend)


_LAYOUTS_1D = {"NCL": "NCHW", "NLC": "NHWC"}


def conv_transpose1d(
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
    layout: str = "NCL",
    precision: Any = None,
    backend: str = "auto",
    autodiff: str = "reverse",
) -> jax.Array:
    """1-D transposed convolution with the semantics of PyTorch's `conv_transpose1d`.

    It runs as `conv_transpose2d` over an image of height 1, and takes its arguments
    with one value in place of two; errors speak of the axis as the width.

    Args:
        x: input, (N, C_in, L), or (N, L, C_in) with ``layout="NLC"``; the batch axis
            may be absent.
        weight: (C_in, C_out // groups, k) in either layout, of x's dtype.
        bias: (C_out,), of x's dtype, or None.
        stride: an int, or a sequence of one, as for all that follow.
        padding: how much of each end of the full result is cut off; or a signed crop
            ``((lo, hi),)``, or "SAME" or "VALID".
        output_padding: extra positions at the high end, below stride or dilation.
        dilation: distance between two kernel elements.
        groups: C_in and C_out fall into this many independent groups.
        output_size: the length of the result, in place of output_padding.
        layout: "NCL" or "NLC": memory order of x and of the result.
        precision: see `conv_transpose2d`.
        backend: see there.
        autodiff: see there.

    Returns:
        The result, (N, C_out, L_out) or (N, L_out, C_out), in x's dtype.

    Raises:
        ValueError: if a value is illegal; the message names it and what would be legal.
        TypeError: if an argument has the wrong structure or dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax_transconv import conv_transpose1d
        >>> conv_transpose1d(jnp.ones((1, 1, 3)), jnp.ones((1, 1, 2)), stride=2).shape
        (1, 1, 6)
    """
    x, weight, bias = (_as_array(n, a) for n, a in _named(x, weight, bias))
    if layout not in _LAYOUTS_1D:
        raise value_error(
            f"layout must be one of {', '.join(_LAYOUTS_1D)} in 1-D, got {layout!r}.",
            "layout is the memory order of x and of the result.",
        )
    if x.ndim not in (2, 3):
        raise value_error(
            f"x must have rank 3 ({layout}) or 2 (unbatched) in 1-D, got rank {x.ndim} "
            f"with shape {x.shape}.",
            "add or fold batch axes with reshape.",
        )
    if weight.ndim != 3:
        raise value_error(
            "weight must have rank 3 (in_channels, out_channels // groups, k) in 1-D, "
            f"got rank {weight.ndim} with shape {weight.shape}.",
            "reshape the weight.",
        )
    height = x.ndim - 1 if layout == "NCL" else x.ndim - 2
    y = conv_transpose2d(
        jnp.expand_dims(x, height),
        jnp.expand_dims(weight, 2),
        bias,
        stride=(1, _single("stride", stride)),
        padding=_single_padding(padding),
        output_padding=(0, _single("output_padding", output_padding)),
        dilation=(1, _single("dilation", dilation)),
        groups=groups,
        output_size=(
            None if output_size is None else (1, _single("output_size", output_size))
        ),
        layout=_LAYOUTS_1D[layout],
        precision=precision,
        backend=backend,
        autodiff=autodiff,
    )
    return jnp.squeeze(y, height)


def _single(name: str, value: Any) -> Any:
    """An argument of one axis: a value, or a sequence of one."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if len(value) != 1:
        raise type_error(
            f"{name} must be one value in 1-D, got {len(value)}: {value!r}.",
            f"give {name} as an int.",
        )
    return value[0]


def _single_padding(padding: Any) -> Any:
    if isinstance(padding, str):
        return padding
    padding = _single("padding", padding)
    if isinstance(padding, Sequence):
        return (0, 0), padding
    return 0, padding


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What runs, for each pass, and why.

    Attributes:
        spec: the problem.
        device: the device that it was planned for.
        plans: one `jax_transconv.plan.Plan` a pass, by pass name; for the whole
            arrays, while each shard has plans of its own.
        cuts: for arrays cut over a mesh, how jit cuts the forward pass along each axis.
    """

    spec: Any
    device: plan.DeviceFacts
    plans: dict[str, plan.Plan]
    cuts: tuple[str, ...] = ()

    def __str__(self) -> str:
        s, g = self.spec, self.spec.geometry
        head = (
            f"conv_transpose2d x {s.x_shape} weight {s.w_shape} -> {s.y_shape} "
            f"{s.dtype} {g.layout}, stride {g.stride}, dilation {g.dilation}, "
            f"crop {g.crop}, groups {g.groups}, precision {g.precision.name}\n"
            f"on {self.device.name or self.device.platform}"
        )
        return "\n".join([head, *self.cuts, *(str(p) for p in self.plans.values())])


def explain(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    platform: str | None = None,
    backend: str = "auto",
    autodiff: str = "reverse",
    **arguments: Any,
) -> Explanation:
    """Says which row each pass of a call takes, and why every other row declined.

    Args:
        x: array or `jax.ShapeDtypeStruct`.
        weight: array or `jax.ShapeDtypeStruct`.
        bias: array, `jax.ShapeDtypeStruct` or None.
        platform: "cpu", "cuda", ...: default, the platform that JAX would use.
        backend: as in `conv_transpose2d`.
        autodiff: as in `conv_transpose2d`.
        **arguments: the other arguments of `conv_transpose2d`.

    Returns:
        The explanation, which is printed as well.

    Raises:
        ValueError: as `conv_transpose2d` would; or if no such platform is known.
        TypeError: as `conv_transpose2d` would.
    """
    if len(x.shape) == 3:
        x = jax.eval_shape(lambda x: x[None], x)
    spec = _parse(x, weight, bias, backend=backend, autodiff=autodiff, **arguments)
    found = explanation(spec, platform, backend)
    cuts = sharding.describe(spec, x, weight)
    found = dataclasses.replace(found, cuts=cuts)
    print(found)
    return found


def explanation(
    spec: Any,
    platform: str | None,
    backend: str,
    passes: Sequence[str] | None = None,
) -> Explanation:
    """As `explain`, for a parsed problem and for some of its passes."""
    device = plan.device_of(platform)
    names = PASSES if passes is None else passes
    return Explanation(
        spec, device, {name: plan.choose(name, spec, device, backend) for name in names}
    )


def _named(x: Any, weight: Any, bias: Any) -> tuple[tuple[str, Any], ...]:
    return ("x", x), ("weight", weight), ("bias", bias)


def _as_array(name: str, value: Any) -> Any:
    if value is None and name == "bias":
        return None
    if isinstance(value, (np.ndarray, np.generic)):
        # JAX would narrow integers and booleans too: they are refused by dtype later.
        return jnp.asarray(value)
    if isinstance(value, jax.Array) or hasattr(value, "__jax_array__"):
        return jnp.asarray(value)
    raise type_error(
        f"{name} must be an array, got {type(value).__name__}.",
        f"pass {name} as a jax.Array or a numpy array.",
    )


def _parse(
    x: Any, weight: Any, bias: Any, *, backend: str, autodiff: str, **arguments: Any
) -> Any:
    if autodiff not in ("reverse", "both"):
        raise value_error(
            f"autodiff must be 'reverse' or 'both', got {autodiff!r}.",
            "'both' allows forward mode, 'reverse' has the faster gradient.",
        )
    plan.check_backend(backend)
    return parse_geometry(x, weight, bias, **arguments)


def _check_devices(x: Any, weight: Any, bias: Any) -> None:
    """Committed arrays must lie on the same devices, as for any JAX operation."""
    placed = {
        name: a.devices()
        for name, a in _named(x, weight, bias)
        if isinstance(a, jax.Array)
        and not isinstance(a, jax.core.Tracer)
        and a.committed
    }
    for name, devices in placed.items():
        first = next(iter(placed))
        if devices != placed[first]:
            raise value_error(
                f"{first} and {name} must lie on the same devices, got "
                f"{_names(placed[first])} and {_names(devices)}.",
                f"move one of them, e.g. jax.device_put({name}, {first}.sharding).",
            )


def _names(devices: Any) -> str:
    return ", ".join(sorted(str(d) for d in devices))
