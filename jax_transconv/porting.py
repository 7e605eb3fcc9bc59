"""Weights and arguments of other frameworks, in ours and in Flax's.

Whole models: `to_flax` and `to_torch` carry a PyTorch state dict to the variables of a
Flax model and back, by a map from layer to layer. Single layers: `flax_kernel` and
`torch_weight` for kernels of Flax, `keras_weight` and `keras_arguments` for Keras and
TensorFlow, `onnx_arguments` for an ONNX node. None of those packages is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_transconv.torch_compat import to_numpy, to_torch_tensor

__all__ = [
    "Layer",
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

    Example:
        >>> import numpy as np
        >>> flax_kernel(np.ones((3, 8, 4, 4))).shape
        (4, 4, 3, 8)
    """
    weight = to_numpy("weight", weight)
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
    """
    kernel = to_numpy("kernel", kernel)
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
    """
    return torch_weight(kernel, transpose_kernel=True)


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
    kernel = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
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
    added = (
        (None,) * rank
        if output_padding is None
        else _per_axis("output_padding", output_padding, rank)
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
        ValueError: if attributes contradict each other or the shapes.

    Example:
        >>> onnx_arguments((1, 3, 5, 5), (3, 8, 3, 3), strides=[2, 2],
        ...                auto_pad="SAME_UPPER")["padding"]
        ((0, 1), (0, 1))
    """
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
    wanted: Any = (None,) * rank
    if output_shape is not None:
        wanted = _per_axis("output_shape", tuple(output_shape)[-rank:], rank)
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


def _per_axis(name: str, value: Any, count: int, default: int = 1) -> tuple[int, ...]:
    if value is None:
        value = default
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) != count:
        raise ValueError(
            f"porting: {name} must have {count} values for this kernel, got "
            f"{len(values)}: {values}.\nResolution: give {name} for each axis."
        )
    return values


# -- Whole models. --


@dataclasses.dataclass(frozen=True)
class Layer:
    """A PyTorch layer, and how each of its parameters becomes one of Flax.

    Made by `conv_transpose`, `conv_transpose2d`, `conv`, `dense` and `norm`.

    Attributes:
        name: of the PyTorch layer, as in "decoder.up1".
        parameters: by the name in Flax: the name in PyTorch, and the functions that
            turn the one array into the other and back.
    """

    name: str
    parameters: Mapping[str, tuple[str, Callable[..., Any], Callable[..., Any]]]

    def torch_name(self, parameter: str) -> str:
        """The entry of the state dict that a Flax parameter comes from."""
        return ".".join(filter(None, (self.name, self.parameters[parameter][0])))


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


def conv_transpose(name: str, *, transpose_kernel: bool = False) -> Layer:
    """``torch.nn.ConvTranspose1d`` or ``2d`` to Flax's `ConvTranspose`, or ours."""
    return Layer(
        name,
        {
            "kernel": (
                "weight",
                lambda w: flax_kernel(w, transpose_kernel=transpose_kernel),
                lambda k: torch_weight(k, transpose_kernel=transpose_kernel),
            ),
            "bias": ("bias", _as_it_is, _as_it_is),
        },
    )


def conv_transpose2d(name: str) -> Layer:
    """``torch.nn.ConvTranspose2d`` to our Flax layer of the same name, any groups."""
    return Layer(
        name,
        {
            "kernel": ("weight", _as_it_is, _as_it_is),
            "bias": ("bias", _as_it_is, _as_it_is),
        },
    )


def conv(name: str) -> Layer:
    """``torch.nn.Conv1d``, ``2d`` or ``3d`` to Flax's `Conv`, with any groups."""
    return Layer(
        name,
        {
            "kernel": (
                "weight",
                lambda w: np.moveaxis(w, (0, 1), (-1, -2)),
                lambda k: np.moveaxis(k, (-1, -2), (0, 1)),
            ),
            "bias": ("bias", _as_it_is, _as_it_is),
        },
    )


def dense(name: str) -> Layer:
    """``torch.nn.Linear`` to Flax's `Dense` or `Linear`."""
    return conv(name)  # a kernel without spatial axes


def norm(name: str) -> Layer:
    """Any of torch's batch, group and layer norms to Flax's, running statistics too."""
    names = {
        "scale": "weight",
        "bias": "bias",
        "mean": "running_mean",
        "var": "running_var",
    }
    return Layer(name, {f: (t, _as_it_is, _as_it_is) for f, t in names.items()})


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
        ValueError: if something is missing, unexpected or of another shape; all of it
            is listed.
        TypeError: if an entry is not a floating-point array.

    Example:
        >>> import numpy as np
        >>> state = {"up.weight": np.ones((3, 8, 4, 4)), "up.bias": np.zeros(8)}
        >>> like = {"up": {"kernel": np.zeros((4, 4, 3, 8)), "bias": np.zeros(8)}}
        >>> to_flax(state, {"up": conv_transpose("up")}, like)["up"]["kernel"].shape
        (4, 4, 3, 8)
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    missing, misshaped, results, used = [], [], [], set()
    for path, leaf in leaves:
        found = _layer_of(path, layers)
        if found is None:
            missing.append(f"{_words(path)} (no layer is mapped to its module)")
            continue
        layer, parameter = found
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
        array = layer.parameters[parameter][1](array)
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
    _refuse("to_flax", "state dict", missing, unexpected, misshaped)
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
        ValueError: if a variable belongs to no layer; all such are listed.
        ImportError: if PyTorch is asked for and not installed.
    """
    if tensors not in ("numpy", "torch"):
        raise ValueError(
            f"to_torch: tensors must be 'numpy' or 'torch', got {tensors!r}.\n"
            "Resolution: use one of them."
        )
    state, unexpected = {}, []
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
        found = _layer_of(path, layers)
        if found is None:
            unexpected.append(_words(path))
            continue
        layer, parameter = found
        name = layer.torch_name(parameter)
        array = np.array(layer.parameters[parameter][2](to_numpy(name, leaf)))
        state[name] = to_torch_tensor(array) if tensors == "torch" else array
    _refuse("to_torch", "variables", [], unexpected, [])
    return state


_COLLECTIONS = ("params", "batch_stats")


def _keys(path: Any) -> list[str]:
    return [str(getattr(k, "key", getattr(k, "name", k))) for k in path]


def _words(path: Any) -> str:
    return "/".join(_keys(path))


def _layer_of(path: Any, layers: Mapping[str, Layer]) -> tuple[Layer, str] | None:
    """The layer and the parameter that a variable is, or None."""
    *module, parameter = _keys(path)
    for start in (0, 1) if module and module[0] in _COLLECTIONS else (0,):
        layer = layers.get("/".join(module[start:]))
        if layer is not None and parameter in layer.parameters:
            return layer, parameter
    return None


def _refuse(op: str, what: str, *kinds: list[str]) -> None:
    names = ("missing", "unexpected", "mis-shaped")
    faults = [
        f"{name}: {', '.join(found)}"
        for name, found in zip(names, kinds, strict=True)
        if found
    ]
    if faults:
        raise ValueError(
            f"{op}: the {what} and the layers do not fit. {'; '.join(faults)}.\n"
            "Resolution: map every Flax module to its PyTorch layer by name, and build "
            "both models with the same sizes, biases and groups."
        )
