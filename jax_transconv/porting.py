"""Weights and arguments of other frameworks, in ours and in Flax's.

Whole models: `to_flax` and `to_torch` carry a PyTorch state dict to the variables of a
Flax model and back, by a map from layer to layer. Single layers: `flax_kernel` and
`torch_weight` for kernels of Flax, `keras_weight` and `keras_arguments` for Keras and
TensorFlow, `onnx_arguments` for an ONNX node. None of those packages is imported.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_transconv.torch_compat import to_numpy, to_torch_tensor

__all__ = [
    "Layer",
    "Parameter",
    "conv",
    "conv_transpose",
    "conv_transpose2d",
    "dense",
    "flax_kernel",
    "keras_arguments",
    "keras_weight",
    "norm",
    "onnx_arguments",
    "to_flax",
    "to_torch",
    "torch_weight",
]

# -- One kernel. Axes: torch (C_in, C_out // groups, *k), Flax (*k, C_in, C_out). --


def flax_kernel(weight: Any, *, transpose_kernel: bool = False) -> np.ndarray:
    """The kernel of Flax's `ConvTranspose` that equals a PyTorch weight.

    Args:
        weight: (C_in, C_out, *kernel_size): of one group, since Flax has no others.
        transpose_kernel: as in the Flax layer.

    Returns:
        (*kernel_size, C_in, C_out), flipped; or (*kernel_size, C_out, C_in).

    Raises:
        ValueError: if the weight is not that of one to three spatial axes.

    Example:
        >>> import numpy as np
        >>> flax_kernel(np.ones((3, 8, 4, 4))).shape
        (4, 4, 3, 8)
    """
    weight = to_numpy("weight", weight)
    _check_rank("flax_kernel", "weight", weight, "(C_in, C_out, *kernel_size)", 3)
    if transpose_kernel:
        return np.moveaxis(weight, (0, 1), (-1, -2))
    return np.moveaxis(_flipped(weight, first=2), (0, 1), (-2, -1))


def torch_weight(kernel: Any, *, transpose_kernel: bool = False) -> np.ndarray:
    """The weight of `conv_transpose2d` and of PyTorch that equals a Flax kernel.

    The inverse of `flax_kernel`.

    Args:
        kernel: (*kernel_size, C_in, C_out), or with `transpose_kernel` (*kernel_size,
            C_out, C_in).
        transpose_kernel: as in the Flax layer.

    Returns:
        (C_in, C_out, *kernel_size).

    Raises:
        ValueError: if the kernel is not that of one to three spatial axes.
    """
    kernel = to_numpy("kernel", kernel)
    order = "C_out, C_in" if transpose_kernel else "C_in, C_out"
    _check_rank("torch_weight", "kernel", kernel, f"(*kernel_size, {order})", 3)
    if transpose_kernel:
        return np.moveaxis(kernel, (-1, -2), (0, 1))
    return _flipped(np.moveaxis(kernel, (-2, -1), (0, 1)), first=2)


def keras_weight(kernel: Any) -> np.ndarray:
    """The weight of `conv_transpose2d` that equals a kernel of Keras or TensorFlow.

    Args:
        kernel: of `Conv2DTranspose` or `tf.nn.conv2d_transpose`, (kh, kw, C_out, C_in);
            or of their 1-D siblings, (k, C_out, C_in).

    Returns:
        (C_in, C_out, kh, kw) or (C_in, C_out, k). Nothing is flipped.

    Raises:
        ValueError: if the kernel is not that of one or two spatial axes.
    """
    kernel = to_numpy("kernel", kernel)
    _check_rank("keras_weight", "kernel", kernel, "(*kernel_size, C_out, C_in)", 2)
    return torch_weight(kernel, transpose_kernel=True)


def _check_rank(op: str, name: str, array: np.ndarray, axes: str, most: int) -> None:
    if not 1 <= array.ndim - 2 <= most:
        raise ValueError(
            f"{op}: {name} must be {axes} with 1 to {most} spatial axes, got shape "
            f"{array.shape}.\nResolution: pass the array as the layer holds it."
        )


def _flipped(array: np.ndarray, first: int) -> np.ndarray:
    return np.flip(array, axis=tuple(range(first, array.ndim)))


# -- Arguments. --


def keras_arguments(
    kernel_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    output_padding: int | Sequence[int] | None = None,
    dilation_rate: int | Sequence[int] = 1,
    data_format: str = "channels_last",
) -> dict[str, Any]:
    """Arguments of `conv_transpose2d` that equal those of a Keras layer.

    Keras' "same" makes the output ``in * strides``, or with an output padding
    ``(in - 1) * strides + e % 2 + output_padding``, where ``e = dilation_rate *
    (kernel_size - 1) + 1``; of what is cut off, the smaller half is in front.

    Args:
        kernel_size: of `Conv2DTranspose`: two integers; or of `Conv1DTranspose`: one in
            a sequence, for `conv_transpose1d`. An int is a square.
        strides: as in the layer.
        padding: "valid" or "same".
        output_padding: as in the layer.
        dilation_rate: as in the layer.
        data_format: "channels_last" or "channels_first".

    Returns:
        stride, padding (a signed crop), dilation and layout, by name.

    Raises:
        ValueError: if a value is none that Keras takes.

    Example:
        >>> keras_arguments((4, 3), strides=2, padding="same")["padding"]
        ((1, 1), (0, 1))
    """
    square = np.ndim(kernel_size) == 0
    kernel = _per_axis("kernel_size", kernel_size, 2 if square else None)
    rank = len(kernel)
    if rank not in (1, 2):
        raise ValueError(
            f"keras_arguments: kernel_size must have one or two axes, got {kernel}.\n"
            "Resolution: Conv3DTranspose has no equal here."
        )
    words = {"channels_last": ("NLC", "NHWC"), "channels_first": ("NCL", "NCHW")}
    if data_format not in words or padding not in ("valid", "same"):
        raise ValueError(
            "keras_arguments: padding must be 'valid' or 'same', and data_format "
            f"'channels_last' or 'channels_first', got {padding!r} and "
            f"{data_format!r}.\nResolution: pass what the Keras layer was built with."
        )
    stride = _per_axis("strides", strides, rank)
    dilation = _per_axis("dilation_rate", dilation_rate, rank)
    _at_least("keras_arguments", 1, kernel_size=kernel, strides=stride)
    _at_least("keras_arguments", 1, dilation_rate=dilation)
    added: Any = (None,) * rank
    if output_padding is not None:
        added = _per_axis("output_padding", output_padding, rank)
        _at_least("keras_arguments", 0, output_padding=added)
        if any(o >= s for o, s in zip(added, stride, strict=True)):
            raise ValueError(
                "keras_arguments: output_padding must be less than strides on each "
                f"axis, got output_padding {added} and strides {stride}.\n"
                "Resolution: pass what the Keras layer was built with."
            )
    crop = []
    for k, s, d, o in zip(kernel, stride, dilation, added, strict=True):
        e = d * (k - 1) + 1
        if padding == "valid":
            crop.append((0, min(e - s, 0) if o is None else -o))
        else:
            cut = e - s if o is None else e - e % 2 - o
            low = max(cut, 0) // 2
            crop.append((low, cut - low))
    return {
        "stride": stride,
        "padding": tuple(crop),
        "dilation": dilation,
        "layout": words[data_format][rank - 1],
    }


def onnx_arguments(
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    auto_pad: str | bytes = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Arguments of `conv_transpose2d` that equal the attributes of a `ConvTranspose`.

    The weight and the bias of the node are ours as they are. With `output_shape`, or an
    `auto_pad` of "SAME_UPPER" or "SAME_LOWER", which mean ``in * strides``, what is cut
    off follows from the size; "SAME_UPPER" cuts the smaller half in front, everything
    else the larger one, and nothing is ever cut to a negative amount: what is too short
    grows at its end.

    Args:
        x_shape: (N, C, *size), with one or two spatial axes.
        weight_shape: (C, C_out // group, *kernel_shape).
        auto_pad: as in ONNX, and so are all that follow.
        dilations: see there.
        group: see there.
        kernel_shape: see there; it must be that of the weight.
        output_padding: see there.
        output_shape: see there: of the spatial axes, or of all.
        pads: see there: all beginnings, then all ends.
        strides: see there.

    Returns:
        stride, padding (a signed crop), dilation and groups, by name; for
        `conv_transpose1d` with one spatial axis.

    Raises:
        ValueError: if attributes are not as ONNX has them, or contradict each other or
            the shapes.

    Example:
        >>> onnx_arguments((1, 3, 5, 5), (3, 8, 3, 3), strides=[2, 2],
        ...                auto_pad="SAME_UPPER")["padding"]
        ((0, 1), (0, 1))
    """
    op = "onnx_arguments"
    size, kernel = tuple(x_shape[2:]), tuple(weight_shape[2:])
    rank = len(kernel)
    mode = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise _onnx_error(
            "auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID", repr(auto_pad)
        )
    if len(size) != rank or rank not in (1, 2):
        raise _onnx_error(
            "x and weight must have one or two spatial axes, the same",
            f"{tuple(x_shape)} and {tuple(weight_shape)}",
        )
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise _onnx_error(
            "kernel_shape must be that of the weight",
            f"{tuple(kernel_shape)} and {tuple(weight_shape)}",
        )
    if pads is not None and any(pads) and mode != "NOTSET":
        raise _onnx_error(
            "pads and auto_pad exclude each other", f"{list(pads)} and {mode}"
        )
    stride = _per_axis("strides", strides, rank)
    dilation = _per_axis("dilations", dilations, rank)
    added = _per_axis("output_padding", output_padding, rank, 0)
    ends = _per_axis("pads", pads, 2 * rank, 0)
    _at_least(op, 1, group=(group,), strides=stride, dilations=dilation)
    _at_least(op, 0, output_padding=added, pads=ends)
    if x_shape[1] != weight_shape[0] or weight_shape[0] % group:
        raise _onnx_error(
            "x and weight must have the same number of channels, a multiple of group",
            f"{tuple(x_shape)} and {tuple(weight_shape)} with group {group}",
        )
    if any(o >= max(s, d) for o, s, d in zip(added, stride, dilation, strict=True)):
        raise _onnx_error(
            "output_padding must be less than strides or dilations on each axis",
            f"output_padding {added}, strides {stride} and dilations {dilation}",
        )
    wanted: Any = (None,) * rank
    if output_shape is not None:
        if len(output_shape) not in (rank, rank + 2):
            raise _onnx_error(
                f"output_shape must have the {rank} spatial axes or all {rank + 2}",
                f"{tuple(output_shape)}",
            )
        wanted = _per_axis("output_shape", tuple(output_shape)[-rank:], rank)
        _at_least(op, 1, output_shape=wanted)
    elif mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(size, stride, strict=True)]

    crop = []
    for a in range(rank):
        full = (size[a] - 1) * stride[a] + dilation[a] * (kernel[a] - 1) + 1
        if wanted[a] is None:
            crop.append((ends[a], ends[rank + a] - added[a]))
            continue
        cut = max(full + added[a] - wanted[a], 0)
        low = cut // 2 if mode == "SAME_UPPER" else cut - cut // 2
        crop.append((low, full - wanted[a] - low))
    return {
        "stride": stride,
        "padding": tuple(crop),
        "dilation": dilation,
        "groups": group,
    }


def _onnx_error(rule: str, got: str) -> ValueError:
    return ValueError(
        f"onnx_arguments: {rule}, got {got}.\n"
        "Resolution: pass the attributes of the node as they are."
    )


def _per_axis(
    name: str, value: Any, count: int | None, default: int = 1
) -> tuple[int, ...]:
    """One integer for each of `count` axes, or for as many as there are values."""
    if value is None:
        value = default
    try:
        values = (operator.index(value),) * (count or 1)
    except TypeError:  # not one integer
        try:
            values = tuple(operator.index(v) for v in value)
        except TypeError:
            raise ValueError(
                f"porting: {name} must be integers, got {value!r}.\n"
                f"Resolution: give {name} as an int or a sequence of ints."
            ) from None
    if count is not None and len(values) != count:
        raise ValueError(
            f"porting: {name} must have {count} values for this kernel, got "
            f"{len(values)}: {values}.\nResolution: give {name} for each axis."
        )
    return values


def _at_least(op: str, least: int, **arguments: tuple[int, ...]) -> None:
    for name, values in arguments.items():
        if any(v < least for v in values):
            raise ValueError(
                f"{op}: {name} must be at least {least}, got {values}.\n"
                "Resolution: pass the values of the layer as they are."
            )


# -- Whole models. --


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a PyTorch layer, and how it becomes one of Flax.

    Attributes:
        name: in PyTorch.
        axes: of the array in PyTorch and of that in Flax, in words.
        ranks: how many axes it may have, in both.
        to_flax: turns the array in PyTorch into that in Flax.
        to_torch: and back.
    """

    name: str
    axes: tuple[str, str] = ("(channels,)", "(channels,)")
    ranks: range = range(1, 2)
    to_flax: Callable[[np.ndarray], np.ndarray] = _as_it_is
    to_torch: Callable[[np.ndarray], np.ndarray] = _as_it_is


@dataclasses.dataclass(frozen=True)
class Layer:
    """A PyTorch layer, and how each of its parameters becomes one of Flax.

    Made by `conv_transpose`, `conv_transpose2d`, `conv`, `dense` and `norm`.

    Attributes:
        name: of the PyTorch layer, as in "decoder.up1".
        parameters: by the name in Flax.
    """

    name: str
    parameters: Mapping[str, Parameter]

    def torch_name(self, parameter: str) -> str:
        """The entry of the state dict that a Flax parameter comes from."""
        return ".".join(filter(None, (self.name, self.parameters[parameter].name)))


def conv_transpose(name: str, *, transpose_kernel: bool = False) -> Layer:
    """``torch.nn.ConvTranspose1d`` or ``2d`` to Flax's `ConvTranspose`, or ours."""
    order = "C_out, C_in" if transpose_kernel else "C_in, C_out"
    kernel = Parameter(
        "weight",
        ("(C_in, C_out, *kernel_size)", f"(*kernel_size, {order})"),
        range(3, 6),
        lambda w: flax_kernel(w, transpose_kernel=transpose_kernel),
        lambda k: torch_weight(k, transpose_kernel=transpose_kernel),
    )
    return Layer(name, {"kernel": kernel, "bias": Parameter("bias")})


def conv_transpose2d(name: str) -> Layer:
    """``torch.nn.ConvTranspose2d`` to our Flax layer of the same name, any groups."""
    axes = "(C_in, C_out // groups, kh, kw)"
    kernel = Parameter("weight", (axes, axes), range(4, 5))
    return Layer(name, {"kernel": kernel, "bias": Parameter("bias")})


def conv(name: str) -> Layer:
    """``torch.nn.Conv1d``, ``2d`` or ``3d`` to Flax's `Conv`, with any groups."""
    axes = (
        "(C_out, C_in // groups, *kernel_size)",
        "(*kernel_size, C_in // groups, C_out)",
    )
    return _conv(name, axes, range(3, 6))


def dense(name: str) -> Layer:
    """``torch.nn.Linear`` to Flax's `Dense` or `Linear`."""
    # A kernel without spatial axes.
    return _conv(name, ("(C_out, C_in)", "(C_in, C_out)"), range(2, 3))


def _conv(name: str, axes: tuple[str, str], ranks: range) -> Layer:
    kernel = Parameter(
        "weight",
        axes,
        ranks,
        lambda w: np.moveaxis(w, (0, 1), (-1, -2)),
        lambda k: np.moveaxis(k, (-1, -2), (0, 1)),
    )
    return Layer(name, {"kernel": kernel, "bias": Parameter("bias")})


def norm(name: str) -> Layer:
    """Any of torch's batch, group and layer norms to Flax's, running statistics too."""
    names = {
        "scale": "weight",
        "bias": "bias",
        "mean": "running_mean",
        "var": "running_var",
    }
    # A layer norm may be over several axes.
    shape = ("(*normalized_shape,)", "(*normalized_shape,)")
    return Layer(name, {f: Parameter(t, shape, range(1, 33)) for f, t in names.items()})


def to_flax(
    state_dict: Mapping[str, Any], layers: Mapping[str, Layer], like: Any
) -> Any:
    """The variables of a Flax model, from a PyTorch state dict.

    Args:
        state_dict: names to arrays (torch, numpy or JAX), of the whole model.
        layers: the PyTorch layer of each Flax module, by the path of the module, as in
            ``{"decoder/up1": conv_transpose("decoder.up.1")}``.
        like: variables of the model, or their shapes: for Linen what `init`, or
            ``jax.eval_shape(model.init, ...)``, returns; for NNX
            ``nnx.to_pure_dict(nnx.state(model))``.

    Returns:
        Variables like those, in their dtypes; ``nnx.replace_by_pure_dict`` puts them
        into the state of an NNX model. The arrays are copies.

    Raises:
        ValueError: if something is missing, unexpected or of another shape, or an entry
            of `layers` is that of no module; all of it is listed.
        TypeError: if an entry is not a floating-point array.

    Example:
        >>> import numpy as np
        >>> state = {"up.weight": np.ones((3, 8, 4, 4)), "up.bias": np.zeros(8)}
        >>> like = {"up": {"kernel": np.zeros((4, 4, 3, 8)), "bias": np.zeros(8)}}
        >>> to_flax(state, {"up": conv_transpose("up")}, like)["up"]["kernel"].shape
        (4, 4, 3, 8)
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    missing, misshaped, results, used, mapped = [], [], [], set(), set()
    for path, leaf in leaves:
        found = _layer_of(path, layers)
        if found is None:
            missing.append(f"{_words(path)} (no layer is mapped to its module)")
            continue
        module, parameter = found
        mapped.add(module)
        layer, rule = layers[module], layers[module].parameters[parameter]
        name = layer.torch_name(parameter)
        if name not in state_dict:
            missing.append(f"{name} (for {_words(path)})")
            continue
        used.add(name)
        array = to_numpy(name, state_dict[name])
        if array.ndim != len(leaf.shape):
            misshaped.append(
                f"{name} has shape {array.shape}, and {_words(path)} is "
                f"{tuple(leaf.shape)}"
            )
            continue
        if array.ndim not in rule.ranks:
            misshaped.append(
                f"{name} has shape {array.shape}, must be {rule.axes[0]} (for "
                f"{_words(path)})"
            )
            continue
        array = rule.to_flax(array)
        if array.shape != tuple(leaf.shape):
            misshaped.append(
                f"{name} has shape {tuple(np.shape(state_dict[name]))}, which makes "
                f"{array.shape}, and {_words(path)} is {tuple(leaf.shape)}"
            )
            continue
        results.append(jnp.array(array.astype(leaf.dtype)))
    unexpected = [
        name
        for name in state_dict
        if name not in used and not name.endswith("num_batches_tracked")
    ]
    _refuse(
        "to_flax",
        "state dict",
        {
            "missing": missing,
            "unexpected": unexpected,
            "mis-shaped": misshaped,
            "mapped, but not in the model": _unused(layers, mapped),
        },
    )
    return jax.tree.unflatten(tree, results)


def to_torch(
    variables: Any,
    layers: Mapping[str, Layer],
    *,
    tensors: Literal["numpy", "torch"] = "numpy",
) -> dict[str, Any]:
    """A PyTorch state dict, from the variables of a Flax model.

    The inverse of `to_flax`. A batch norm's ``num_batches_tracked``, which Flax does
    not have, is left out, and torch keeps its own.

    Args:
        variables: as `like` of `to_flax`.
        layers: as there.
        tensors: "numpy", or "torch" for what torch's ``load_state_dict`` takes.

    Returns:
        Names to arrays, which are copies.

    Raises:
        ValueError: if a variable belongs to no layer or has too few or too many axes,
            if an entry of `layers` is that of no module, or if two modules are mapped
            to one PyTorch layer and differ; all such are listed.
        ImportError: if PyTorch is asked for and not installed.
    """
    if tensors not in ("numpy", "torch"):
        raise ValueError(
            f"to_torch: tensors must be 'numpy' or 'torch', got {tensors!r}.\n"
            "Resolution: use one of them."
        )
    state, unexpected, misshaped, mapped = {}, [], [], set()
    source: dict[str, str] = {}
    conflicts = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
        found = _layer_of(path, layers)
        if found is None:
            unexpected.append(_words(path))
            continue
        module, parameter = found
        mapped.add(module)
        layer, rule = layers[module], layers[module].parameters[parameter]
        name = layer.torch_name(parameter)
        array = to_numpy(_words(path), leaf)
        if array.ndim not in rule.ranks:
            misshaped.append(
                f"{_words(path)} has shape {array.shape}, must be {rule.axes[1]}"
            )
            continue
        array = np.array(rule.to_torch(array))
        if name in state and not np.array_equal(state[name], array, equal_nan=True):
            conflicts.append(f"{name} is both {source[name]} and {_words(path)}")
        state[name], source[name] = array, _words(path)
    _refuse(
        "to_torch",
        "variables",
        {
            "unexpected": unexpected,
            "mis-shaped": misshaped,
            "conflicting": conflicts,
            "mapped, but not in the model": _unused(layers, mapped),
        },
    )
    if tensors == "torch":
        return {name: to_torch_tensor(array) for name, array in state.items()}
    return state


def _unused(layers: Mapping[str, Layer], mapped: set[str]) -> list[str]:
    return [
        f"{module!r} (to {layer.name})"
        for module, layer in layers.items()
        if module not in mapped
    ]


_COLLECTIONS = ("params", "batch_stats")


def _keys(path: Any) -> list[str]:
    return [str(getattr(k, "key", getattr(k, "name", k))) for k in path]


def _words(path: Any) -> str:
    return "/".join(_keys(path))


def _layer_of(path: Any, layers: Mapping[str, Layer]) -> tuple[str, str] | None:
    """The module, as in `layers`, and the parameter that a variable is, or None."""
    *keys, parameter = _keys(path)
    for start in (0, 1) if keys and keys[0] in _COLLECTIONS else (0,):
        module = "/".join(keys[start:])
        if module in layers and parameter in layers[module].parameters:
            return module, parameter
    return None


def _refuse(op: str, what: str, faults: Mapping[str, list[str]]) -> None:
    found = [f"{kind}: {', '.join(names)}" for kind, names in faults.items() if names]
    if found:
        raise ValueError(
            f"{op}: the {what} and the layers do not fit. {'; '.join(found)}.\n"
            "Resolution: map every Flax module to its PyTorch layer by name, and build "
            "both models with the same sizes, biases and groups."
        )
