"""PyTorch's transposed convolution layer in JAX, down to the bits of its weights.

`ConvTranspose2d` has the constructor, the parameters and the forward of
``torch.nn.ConvTranspose2d``, and reads and writes its state dicts. `init` and
`Generator` give the initial weights that torch gives after ``torch.manual_seed``.
PyTorch itself is never imported, except to make torch tensors on request.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_transconv.api import conv_transpose2d
from jax_transconv.spec import parse_pair

__all__ = ["ConvTranspose2d", "Generator", "init", "module_from_torch"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")


class Generator:
    """A random stream equal to that of torch's CPU generator.

    Layers that draw from one generator, in the order in which a torch model makes
    them, get the weights that the torch model has after ``torch.manual_seed(seed)``.
    A layer of another kind in between can be stepped over, or initialised, with
    `uniform`.

    Torch's own numbers depend on its build in the last bit: these are the ones of a
    processor with fused multiply-add (any x86 with AVX2, any 64-bit ARM).

    Args:
        seed: what ``torch.manual_seed`` takes, in [-2**63, 2**64). Only the low 32
            bits count, as in torch.

    Raises:
        TypeError: if the seed is not an integer.
        ValueError: if the seed is outside of torch's range.

    Example:
        >>> generator = Generator(0)
        >>> weight, bias = init(None, 3, 8, 4, generator=generator)
        >>> weight_2, bias_2 = init(None, 8, 1, 4, generator=generator)
        >>> weight_2.shape
        (8, 1, 4, 4)
    """

    def __init__(self, seed: int) -> None:
        try:
            number = operator.index(seed)
        except TypeError:
            raise TypeError(
                f"Generator: seed must be an integer, got {seed!r} of type "
                f"{type(seed).__name__}.\nResolution: pass what torch.manual_seed took."
            ) from None
        if not -(2**63) <= number < 2**64:
            raise ValueError(
                f"Generator: seed must be in [-2**63, 2**64), got {number}.\n"
                "Resolution: pass what torch.manual_seed took."
            )
        # numpy's legacy seeding of MT19937 is the one that torch uses.
        self._words = np.random.RandomState(number & 0xFFFFFFFF)

    def uniform(
        self, shape: Sequence[int], bound: float, dtype: DTypeLike = jnp.float32
    ) -> np.ndarray:
        """What ``torch.empty(shape, dtype=dtype).uniform_(-bound, bound)`` holds.

        Args:
            shape: shape of the result.
            bound: half of the width of the interval.
            dtype: float16, bfloat16, float32 or float64.

        Returns:
            The values, of `shape` and `dtype`.

        Raises:
            TypeError: if torch has no rule for the dtype that is reproduced here.
        """
        target = _floating(dtype)
        # 16-bit types are drawn in float32. A float64 takes two words, high one first.
        compute = np.float64 if target == np.float64 else np.float32
        digits, per_value = (53, 2) if compute is np.float64 else (24, 1)
        words = self._words.randint(
            0, 2**32, size=(math.prod(shape), per_value), dtype=np.uint32
        ).astype(np.uint64)
        bits = words[:, -1] | (words[:, 0] << np.uint64(32) if per_value == 2 else 0)
        unit = (bits & np.uint64(2**digits - 1)).astype(compute)
        unit *= compute(2.0**-digits)
        # Torch rounds unit * (high - low) + low once. With low = -high that is this
        # product, whose other operations are exact.
        high = compute(bound)
        values = ((unit - compute(0.5)) * (compute(2) * high)).astype(target)
        # The interval is half open: what rounds up to its end becomes its start.
        top = high.astype(target)
        return np.where(values == top, -top, values).reshape(tuple(shape))


def init(
    seed: int | None,
    in_channels: int,
    out_channels: int,
    kernel_size: int | Sequence[int],
    groups: int = 1,
    bias: bool = True,
    dtype: DTypeLike = jnp.float32,
    *,
    generator: Generator | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The initial parameters of ``torch.nn.ConvTranspose2d``, bit for bit.

    In 16 bits those of PyTorch 2.13: earlier ones draw fewer bits.

    Torch draws the weight and then the bias, both uniform in ``+-1 / sqrt(fan)`` with
    ``fan = out_channels // groups * kh * kw`` (Kaiming uniform with ``a = sqrt(5)``).

    Args:
        seed: what ``torch.manual_seed`` took; None if `generator` is given.
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: an int, or (kh, kw).
        groups: number of channel groups.
        bias: whether the layer has a bias.
        dtype: float16, bfloat16, float32 or float64.
        generator: a stream to go on drawing from, in place of a fresh one.

    Returns:
        The weight (in_channels, out_channels // groups, kh, kw), and the bias
        (out_channels,) or None.

    Raises:
        ValueError: if both or neither of `seed` and `generator` are given, or if the
            sizes are not those of a layer.
        TypeError: if an argument has the wrong type, or `dtype` is not supported.

    Example:
        >>> weight, bias = init(0, 16, 33, (3, 5), groups=1)
        >>> weight.shape, bias.shape
        ((16, 33, 3, 5), (33,))
    """
    in_channels, out_channels, groups = _channels(in_channels, out_channels, groups)
    kernel = parse_pair("kernel_size", kernel_size, 1)
    if (seed is None) == (generator is None):
        raise ValueError(
            "init: exactly one of seed and generator must be given, got "
            f"seed={seed!r} and generator={generator!r}.\n"
            "Resolution: pass seed=None with a generator, or a seed alone."
        )
    if generator is None:
        assert seed is not None
        generator = Generator(seed)
    shape = (in_channels, out_channels // groups, *kernel)
    fan = math.prod(shape[1:])
    # Both bounds are 1 / sqrt(fan), but torch rounds the weight's on its way there.
    gain = math.sqrt(2.0 / (1 + math.sqrt(5) ** 2))
    weight_bound = math.sqrt(3.0) * (gain / math.sqrt(fan))
    weight = generator.uniform(shape, weight_bound, dtype)
    if not bias:
        return weight, None
    return weight, generator.uniform((out_channels,), 1 / math.sqrt(fan), dtype)


@jax.tree_util.register_pytree_with_keys_class
class ConvTranspose2d:
    """``torch.nn.ConvTranspose2d`` as a JAX pytree.

    The leaves are `weight` and `bias`; all else is static. So `jax.grad` with respect
    to a layer is a layer, and `jax.jit`, `jax.vmap` and `pickle` take it as it is.
    Axes are torch's: x is (N, Cin, H, W) or (Cin, H, W), and each output size is
    ``(in - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: an int, or (kh, kw).
        stride: an int or a pair.
        padding: an int or a pair: positions cut from both ends of the output.
        output_padding: an int or a pair, below stride or below dilation: positions
            given back at the far end.
        groups: number of channel groups.
        bias: whether to add a bias.
        dilation: an int or a pair.
        padding_mode: only "zeros", as in torch.
        seed: initial parameters as after ``torch.manual_seed(seed)``.
        generator: initial parameters from this stream, in place of a seed. With
            neither, a seed comes from the operating system.
        dtype: of the parameters: float16, bfloat16, float32 or float64.
        precision: see `jax_transconv.conv_transpose2d`.
        backend: see there.
        autodiff: "both" allows forward mode (`jax.jvp` and its like); see there.

    Attributes:
        weight: (in_channels, out_channels // groups, kh, kw).
        bias: (out_channels,) or None.

    Raises:
        ValueError: if a value breaks one of torch's rules.
        TypeError: if an argument has the wrong type.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = ConvTranspose2d(3, 8, 4, stride=2, padding=1, seed=0)
        >>> layer
        ConvTranspose2d(3, 8, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))
        >>> layer(jnp.ones((1, 3, 16, 16), jnp.float32)).shape
        (1, 8, 32, 32)
    """

    weight: jax.Array
    bias: jax.Array | None

    _static = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "output_padding",
        "groups",
        "dilation",
        "padding_mode",
        "precision",
        "backend",
        "autodiff",
    )

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Sequence[int] = 1,
        padding_mode: str = "zeros",
        *,
        seed: int | None = None,
        generator: Generator | None = None,
        dtype: DTypeLike = jnp.float32,
        precision: Any = None,
        backend: str = "auto",
        autodiff: str = "reverse",
    ) -> None:
        self._configure(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            dilation,
            padding_mode,
            precision,
            backend,
            autodiff,
        )
        if seed is None and generator is None:
            seed = int.from_bytes(os.urandom(4), "little")
        weight, bias_value = init(
            seed,
            in_channels,
            out_channels,
            self.kernel_size,
            groups,
            bias,
            dtype,
            generator=generator,
        )
        self.weight = _parameter("weight", weight)
        self.bias = None if bias_value is None else _parameter("bias", bias_value)

    def _configure(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        output_padding: int | Sequence[int],
        groups: int,
        dilation: int | Sequence[int],
        padding_mode: str,
        precision: Any,
        backend: str,
        autodiff: str,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                'ConvTranspose2d: only "zeros" padding mode is supported, got '
                f"padding_mode={padding_mode!r}.\n"
                "Resolution: pad the input before the layer and crop after it."
            )
        self.in_channels, self.out_channels, self.groups = _channels(
            in_channels, out_channels, groups
        )
        self.kernel_size = parse_pair("kernel_size", kernel_size, 1)
        self.stride = parse_pair("stride", stride, 1)
        self.padding = parse_pair("padding", padding, 0)
        self.output_padding = parse_pair("output_padding", output_padding, 0)
        self.dilation = parse_pair("dilation", dilation, 1)
        self.padding_mode = padding_mode
        self.precision = precision
        self.backend = backend
        self.autodiff = autodiff

    def __call__(
        self, x: ArrayLike, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """Same as `forward`."""
        return self.forward(x, output_size)

    def forward(
        self, x: ArrayLike, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        """Applies the layer.

        Args:
            x: (N, in_channels, H, W) or (in_channels, H, W).
            output_size: what the output shall measure, in place of the layer's
                `output_padding`: (H, W), or the whole shape of the output.

        Returns:
            (N, out_channels, H', W') or (out_channels, H', W').

        Raises:
            ValueError: if `output_size` has the wrong length or cannot be reached (the
                message has the legal range), or x does not fit the layer.
            TypeError: if x and the parameters differ in dtype.
        """
        output_padding = self.output_padding
        if output_size is not None:
            output_padding = 0
            rank = np.ndim(x)
            length = len(output_size) if hasattr(output_size, "__len__") else 1
            if length not in (2, rank):
                raise ValueError(
                    f"ConvTranspose2d: for {rank}D input, output_size must have 2 or "
                    f"{rank} elements, got {length}: {output_size}.\n"
                    "Resolution: pass (height, width)."
                )
        return conv_transpose2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=output_padding,
            dilation=self.dilation,
            groups=self.groups,
            output_size=None if output_size is None else output_size[-2:],
            precision=self.precision,
            backend=self.backend,
            autodiff=self.autodiff,
        )

    def from_state_dict(
        self, source: Mapping[str, Any] | str | os.PathLike[str], prefix: str = ""
    ) -> ConvTranspose2d:
        """A layer like this one, with the parameters of a state dict.

        Like torch's ``load_state_dict``, this is strict, and values are cast to the
        dtype of this layer. No axis is moved and nothing is flipped. The parameters
        are copied: later changes of torch tensors do not show.

        Args:
            source: names to arrays (numpy, JAX or torch, bfloat16 too), or the path
                of a safetensors file.
            prefix: what precedes "weight" and "bias" in the names, such as
                "decoder.up1." for a layer inside of a model.

        Returns:
            The new layer.

        Raises:
            ValueError: if parameters are missing, unexpected or of another shape; all
                of them are listed.
            TypeError: if a parameter is not a floating-point array.

        Example:
            >>> layer = ConvTranspose2d(3, 8, 4, seed=0)
            >>> twin = ConvTranspose2d(3, 8, 4, seed=1)
            >>> twin = twin.from_state_dict(layer.to_state_dict("up."), prefix="up.")
            >>> bool((twin.weight == layer.weight).all())
            True
        """
        if isinstance(source, (str, os.PathLike)):
            source = _Safetensors(source)
        expected = {prefix + name: leaf for name, leaf in self._parameters().items()}
        found = {name: source[name] for name in expected if name in source}
        missing = [name for name in expected if name not in found]
        unexpected = [
            name for name in source if name.startswith(prefix) and name not in expected
        ]
        misshaped = [
            f"{name} has shape {np.shape(value)}, not {expected[name].shape}"
            for name, value in found.items()
            if np.shape(value) != expected[name].shape
        ]
        if missing or unexpected or misshaped:
            raise ValueError(
                _mismatch(self, prefix, missing, unexpected, misshaped, list(source))
            )
        leaves = {
            name.removeprefix(prefix): _parameter(
                name, to_numpy(name, value).astype(expected[name].dtype)
            )
            for name, value in found.items()
        }
        return self._with(leaves["weight"], leaves.get("bias"))

    def to_state_dict(
        self,
        prefix: str = "",
        *,
        tensors: Literal["numpy", "torch"] = "numpy",
        path: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """The parameters under torch's names.

        Args:
            prefix: what to put before "weight" and "bias".
            tensors: "numpy", or "torch" for what torch's ``load_state_dict`` takes.
            path: also write them to this safetensors file.

        Returns:
            Names to arrays, which are copies.

        Raises:
            ValueError: if `tensors` is neither.
            ImportError: if PyTorch or safetensors is asked for and not installed.
        """
        if tensors not in ("numpy", "torch"):
            raise ValueError(
                f"to_state_dict: tensors must be 'numpy' or 'torch', got {tensors!r}.\n"
                "Resolution: use one of them."
            )
        state = {
            prefix + name: np.array(leaf) for name, leaf in self._parameters().items()
        }
        if path is not None:
            _import_safetensors("numpy").save_file(state, path)
        if tensors == "torch":
            return {name: to_torch_tensor(array) for name, array in state.items()}
        return state

    def __repr__(self) -> str:
        parts = [
            str(self.in_channels),
            str(self.out_channels),
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        for name, default in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            if getattr(self, name) != (default, default):
                parts.append(f"{name}={getattr(self, name)}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        return f"{type(self).__name__}({', '.join(parts)})"

    def tree_flatten_with_keys(
        self,
    ) -> tuple[Iterable[tuple[Any, Any]], tuple[Any, ...]]:
        """The leaves with their names, and the static rest (for JAX)."""
        key = jax.tree_util.GetAttrKey
        leaves = ((key("weight"), self.weight), (key("bias"), self.bias))
        return leaves, tuple(getattr(self, name) for name in self._static)

    def tree_flatten(self) -> tuple[Iterable[Any], tuple[Any, ...]]:
        """The leaves, and the static rest (for JAX)."""
        return (self.weight, self.bias), self.tree_flatten_with_keys()[1]

    @classmethod
    def tree_unflatten(
        cls, static: tuple[Any, ...], leaves: Iterable[Any]
    ) -> ConvTranspose2d:
        """The inverse of `tree_flatten` (for JAX); takes leaves of any kind."""
        layer = object.__new__(cls)
        for name, value in zip(cls._static, static, strict=True):
            setattr(layer, name, value)
        layer.weight, layer.bias = leaves
        return layer

    def _parameters(self) -> dict[str, jax.Array]:
        bias = {} if self.bias is None else {"bias": self.bias}
        return {"weight": self.weight} | bias

    def _with(self, weight: jax.Array, bias: jax.Array | None) -> ConvTranspose2d:
        return self.tree_unflatten(self.tree_flatten()[1], (weight, bias))


def module_from_torch(
    module: Any,
    *,
    precision: Any = None,
    backend: str = "auto",
    autodiff: str = "reverse",
) -> ConvTranspose2d:
    """The JAX layer that equals a ``torch.nn.ConvTranspose2d``.

    Args:
        module: the torch layer. Its attributes are read and its parameters copied,
            in their own dtype.
        precision: see `jax_transconv.conv_transpose2d`.
        backend: see there.
        autodiff: "both" allows forward mode (`jax.jvp` and its like); see there.

    Returns:
        A layer with the same arguments and parameters.

    Raises:
        TypeError: if the module is not a 2-D transposed convolution.
        ValueError: if its parameters are float64 and JAX would narrow them.
    """
    kernel_size = getattr(module, "kernel_size", ())
    if not getattr(module, "transposed", False) or len(kernel_size) != 2:
        raise TypeError(
            "module_from_torch: module must be a torch.nn.ConvTranspose2d, got "
            f"{type(module).__name__}.\n"
            "Resolution: pass the layer itself, not the model that contains it."
        )
    layer = object.__new__(ConvTranspose2d)
    layer._configure(
        module.in_channels,
        module.out_channels,
        kernel_size,
        module.stride,
        module.padding,
        module.output_padding,
        module.groups,
        module.dilation,
        module.padding_mode,
        precision,
        backend,
        autodiff,
    )
    layer.weight = _parameter("weight", to_numpy("weight", module.weight))
    layer.bias = (
        None
        if module.bias is None
        else _parameter("bias", to_numpy("bias", module.bias))
    )
    return layer


def _floating(dtype: DTypeLike) -> np.dtype:
    target = np.dtype(dtype)
    if target.name not in _DTYPES:
        raise TypeError(
            f"ConvTranspose2d: dtype must be one of {', '.join(_DTYPES)}, got "
            f"{target.name}.\nResolution: initialise in float32 and cast."
        )
    return target


def _channels(in_channels: int, out_channels: int, groups: int) -> tuple[int, int, int]:
    named = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
    for name, value in named.items():
        try:
            positive = not isinstance(value, bool) and operator.index(value) > 0
        except TypeError:
            positive = False
        if not positive:
            raise ValueError(
                f"ConvTranspose2d: {name} must be a positive integer, got {value!r}.\n"
                f"Resolution: use {name} >= 1."
            )
    for name in ("in_channels", "out_channels"):
        if named[name] % groups:
            raise ValueError(
                f"ConvTranspose2d: {name} must be divisible by groups, got "
                f"{name}={named[name]} and groups={groups}.\n"
                f"Resolution: use a divisor of {named[name]} as groups."
            )
    in_channels, out_channels, groups = map(operator.index, named.values())
    return in_channels, out_channels, groups


def _parameter(name: str, value: np.ndarray) -> jax.Array:
    # A copy: JAX may otherwise share the memory of a torch tensor that still changes.
    array = jnp.array(value)
    if array.dtype != value.dtype:
        raise ValueError(
            f"ConvTranspose2d: {name} is {value.dtype}, which JAX would narrow to "
            f"{array.dtype}.\nResolution: jax.config.update('jax_enable_x64', True), "
            "or use a float32 layer."
        )
    return array


def to_numpy(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            # Unknown to torch's numpy bridge; float32 holds each of its values.
            array = value.float().numpy().astype(jnp.bfloat16)
        else:
            array = value.numpy()
    else:
        array = np.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"ConvTranspose2d: {name} must be a floating-point array, got dtype "
            f"{array.dtype}.\nResolution: convert it to float32 first."
        )
    return array


def to_torch_tensor(array: np.ndarray) -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "to_state_dict: tensors='torch' needs PyTorch, which is not installed.\n"
            "Resolution: pip install torch, or use tensors='numpy'."
        ) from error
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _import_safetensors(framework: str) -> Any:
    try:
        import safetensors.numpy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "ConvTranspose2d: safetensors files need the safetensors package.\n"
            "Resolution: pip install safetensors."
        ) from error
    return safetensors.numpy if framework == "numpy" else safetensors


class _Safetensors(Mapping[str, np.ndarray]):
    """The arrays of a safetensors file, each read when asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._open = _import_safetensors("").safe_open
        with self._open(self._path, framework="numpy") as file:
            self._names = tuple(file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        with self._open(self._path, framework="numpy") as file:
            return file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _mismatch(
    layer: ConvTranspose2d,
    prefix: str,
    missing: list[str],
    unexpected: list[str],
    misshaped: list[str],
    names: list[str],
) -> str:
    listed = (
        ("missing", missing),
        ("unexpected", unexpected),
        ("mis-shaped", misshaped),
    )
    faults = "; ".join(f"{kind}: {', '.join(found)}" for kind, found in listed if found)
    if prefix + "weight" in missing:
        layers = [n.removesuffix("weight") for n in names if n.endswith("weight")]
        hint = f"choose the prefix of a layer; those in the state dict are {layers}."
    elif misshaped:
        hint = (
            "weights are (in_channels, out_channels // groups, kh, kw); build the "
            "layer with the arguments of the torch one."
        )
    else:
        hint = "build the layer with the torch one's bias=, and pass its entries only."
    return (
        f"ConvTranspose2d: the state dict does not fit {layer!r} with "
        f"prefix={prefix!r}. {faults[:1].upper()}{faults[1:]}.\nResolution: {hint}"
    )
