"""Who is measured: our rows, JAX's own ways, PyTorch, and what else is installed.

Every peer gets the same arrays. A JAX peer is a forward function, and its gradients are
what `jax.vjp` makes of it: what a user of that function has. PyTorch's arrays are views
of JAX's, its gradients are `aten.convolution_backward`. What a peer can't run, or what
is not installed, is a blank with its reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.shapes import Layer

JAX_DTYPES = {
    "fp16": jnp.float16,
    "bf16": jnp.bfloat16,
    "fp32": jnp.float32,
    "fp64": jnp.float64,
}

# What each pass returns.
OUTPUTS = {
    "fwd": ("y",),
    "fwdb": ("y",),
    "dx": ("dx",),
    "dw": ("dw",),
    "dwb": ("dw", "db"),
    "step": ("y", "dx", "dw", "db"),
}
BIASED = frozenset({"fwdb", "dwb", "step"})
_PASS_OF = {"fwd": "forward", "fwdb": "forward", "dx": "grad_input"}

Arrays = tuple[Any, Any, Any, Any]  # x, w, b, dy
Forward = Callable[[Any, Any, Any], Any]


class Unsupported(Exception):  # noqa: N818 - a reason for a blank, not an error
    """A peer that can't run a problem; says why."""


def _lax_pads(layer: Layer) -> list[tuple[int, int]]:
    """Padding of the stretched input; negative where the crop exceeds the kernel."""
    pads = []
    for a in (0, 1):
        extent = layer.dilation[a] * (layer.kernel[a] - 1) + 1
        lo, hi = layer.crop[a]
        pads.append((extent - 1 - lo, extent - 1 - hi))
    return pads


def _lax_precision(precision: str) -> Any:
    return None if precision == "default" else precision


def _ours(backend: str) -> Callable[[Layer, str], Forward]:
    def build(layer: Layer, precision: str) -> Forward:
        import jax_transconv

        def forward(x: Any, w: Any, b: Any) -> Any:
            return jax_transconv.conv_transpose2d(
                x, w, b, backend=backend, **_our_arguments(layer, precision)
            )

        return forward

    return build


def _our_arguments(layer: Layer, precision: str) -> dict[str, Any]:
    return {
        "stride": layer.stride,
        "padding": layer.crop,
        "dilation": layer.dilation,
        "groups": layer.groups,
        "layout": layer.layout,
        "precision": _lax_precision(precision),
    }


def our_row(layer: Layer, pass_name: str, precision: str, backend: str) -> str:
    """Which of our rows a pass takes; "+"-joined for a step."""
    import jax_transconv

    dtype = JAX_DTYPES[layer.dtype]
    x = jax.ShapeDtypeStruct(layer.x_shape, dtype)
    w = jax.ShapeDtypeStruct(layer.w_shape, dtype)
    with contextlib.redirect_stdout(io.StringIO()):
        plans = jax_transconv.explain(
            x, w, backend=backend, **_our_arguments(layer, precision)
        ).plans
    if pass_name == "step":
        return "+".join(str(p.row) for p in plans.values())
    return str(plans[_PASS_OF.get(pass_name, "grad_weight")].row)


def _lax(layer: Layer, precision: str) -> Forward:
    """`lax.conv_general_dilated` over the stretched input, as a careful user has it."""
    if precision == "high":
        raise Unsupported("XLA runs a HIGH convolution as DEFAULT")
    g, ci, co = layer.groups, layer.cin // layer.groups, layer.cout // layer.groups
    pads = _lax_pads(layer)
    axes = (2, 3) if layer.layout == "NCHW" else (1, 2)

    def forward(x: Any, w: Any, b: Any) -> Any:
        kernel, rhs = w[:, :, ::-1, ::-1], "IOHW"
        if g > 1:
            kernel = kernel.reshape(g, ci, co, *layer.kernel).swapaxes(1, 2)
            kernel, rhs = kernel.reshape(g * co, ci, *layer.kernel), "OIHW"
        # XLA:CPU misreads negative padding: such a crop is cut from the result.
        y = lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(1, 1),
            padding=[(max(lo, 0), max(hi, 0)) for lo, hi in pads],
            lhs_dilation=layer.stride,
            rhs_dilation=layer.dilation,
            dimension_numbers=(layer.layout, rhs, layer.layout),
            feature_group_count=g,
            precision=_lax_precision(precision),
        )
        for a, axis in enumerate(axes):
            start = max(-pads[a][0], 0)
            y = lax.slice_in_dim(y, start, start + layer.out_size[a], axis=axis)
        return y if b is None else y + b.reshape(_bias_shape(layer))

    return forward


def _bias_shape(layer: Layer) -> tuple[int, ...]:
    return (1, -1, 1, 1) if layer.layout == "NCHW" else (1, 1, 1, -1)


def _check_lax_transpose(layer: Layer, precision: str) -> None:
    if precision == "high":
        raise Unsupported("XLA runs a HIGH convolution as DEFAULT")
    if layer.groups > 1:
        raise Unsupported("lax.conv_transpose has no groups")
    if min(min(p) for p in _lax_pads(layer)) < 0:
        raise Unsupported("the crop exceeds the kernel: negative padding")


def _lax_transpose(layer: Layer, precision: str) -> Forward:
    _check_lax_transpose(layer, precision)

    def forward(x: Any, w: Any, b: Any) -> Any:
        y = lax.conv_transpose(
            x,
            w,
            strides=layer.stride,
            padding=_lax_pads(layer),
            rhs_dilation=layer.dilation,
            dimension_numbers=(layer.layout, "OIHW", layer.layout),
            transpose_kernel=True,
            precision=_lax_precision(precision),
        )
        return y if b is None else y + b.reshape(_bias_shape(layer))

    return forward


def _flax(layer: Layer, precision: str) -> Forward:
    try:
        from flax import linen as nn
    except ImportError as error:
        raise Unsupported("flax is not installed") from error
    _check_lax_transpose(layer, precision)
    if layer.layout != "NHWC":
        raise Unsupported("flax has NHWC only")

    def forward(x: Any, w: Any, b: Any) -> Any:
        module = nn.ConvTranspose(
            layer.cout,
            layer.kernel,
            strides=layer.stride,
            padding=_lax_pads(layer),
            kernel_dilation=layer.dilation,
            use_bias=b is not None,
            dtype=x.dtype,
            param_dtype=x.dtype,
            precision=_lax_precision(precision),
            transpose_kernel=True,
        )
        params = {"kernel": w.transpose(2, 3, 1, 0)}
        return module.apply(
            {"params": params if b is None else params | {"bias": b}}, x
        )

    return forward


_JAX_PEERS: dict[str, Callable[[Layer, str], Forward]] = {
    "ours": _ours("auto"),
    "xla": _ours("xla"),
    "lax": _lax,
    "lax_transpose": _lax_transpose,
    "flax": _flax,
}


def _pass_function(forward: Forward, pass_name: str) -> Callable[..., tuple]:
    def run(x: Any, w: Any, b: Any, dy: Any) -> tuple:
        if pass_name == "fwd":
            return (forward(x, w, None),)
        if pass_name == "fwdb":
            return (forward(x, w, b),)
        if pass_name == "dx":
            return jax.vjp(lambda x: forward(x, w, None), x)[1](dy)
        if pass_name == "dw":
            return jax.vjp(lambda w: forward(x, w, None), w)[1](dy)
        if pass_name == "dwb":
            return jax.vjp(lambda w, b: forward(x, w, b), w, b)[1](dy)
        y, pull = jax.vjp(forward, x, w, b)
        return (y, *pull(dy))

    # The program's name, and so the trace's.
    run.__name__ = f"bench_{pass_name}"
    return run


@dataclasses.dataclass
class Runner:
    """One peer ready for one pass of one problem.

    Attributes:
        compile: makes `call` ready, and may raise; run once, perhaps in a thread.
        prepare: sets what is global to the process (PyTorch's flags) before calls.
        call: enqueues one pass over input set number i, and returns its outputs.
        wait: blocks until outputs are there.
        row: which of our rows runs, or "".
        facts: compile_s, temp_bytes: filled by compile.
    """

    compile: Callable[[], None]
    call: Callable[[int], tuple]
    wait: Callable[[Any], None]
    prepare: Callable[[], None] = lambda: None
    row: str = ""
    in_threads: bool = True
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


def _jax_runner(
    layer: Layer, pass_name: str, precision: str, peer: str, sets: list[Arrays]
) -> Runner:
    base, _, row = peer.partition("@")
    build = _ours(row) if row else _JAX_PEERS[base]
    program = jax.jit(_pass_function(build(layer, precision), pass_name))
    name = ""
    if base in ("ours", "xla"):
        name = our_row(layer, pass_name, precision, row or _backend(base))
        if "None" in name:
            raise Unsupported(f"no row runs it with backend={row or base}")
    facts: dict[str, Any] = {}
    ready: list[Any] = []

    def compile_() -> None:
        start = time.perf_counter()
        compiled = program.lower(*sets[0]).compile()
        facts["compile_s"] = time.perf_counter() - start
        memory = compiled.memory_analysis()
        if memory is not None:
            facts["temp_bytes"] = int(memory.temp_size_in_bytes)
        ready.append(compiled)

    return Runner(
        compile=compile_,
        call=lambda i: ready[0](*sets[i]),
        wait=jax.block_until_ready,
        row=name,
        facts=facts,
    )


def _backend(base: str) -> str:
    return "xla" if base == "xla" else "auto"


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unsupported("torch is not installed") from error
    if jax.default_backend() == "gpu" and not torch.cuda.is_available():
        raise Unsupported("this torch has no CUDA")
    return torch


def _torch_sets(torch: Any, layer: Layer, sets: list[Arrays]) -> list[Arrays]:
    """The same memory as JAX's; NHWC images become channels_last views."""

    def image(a: Any) -> Any:
        t = torch.from_dlpack(a)
        return t.permute(0, 3, 1, 2) if layer.layout == "NHWC" else t

    def weight(a: Any) -> Any:
        t = torch.from_dlpack(a)
        if layer.layout == "NHWC":
            t = t.contiguous(memory_format=torch.channels_last)
        return t

    return [
        (image(x), weight(w), torch.from_dlpack(b), image(dy)) for x, w, b, dy in sets
    ]


def _torch_arguments(layer: Layer) -> tuple[dict[str, Any], tuple[int, int]]:
    """PyTorch's arguments, and what must still be cut from the high ends."""
    padding, output_padding, cut = [], [], []
    for a in (0, 1):
        lo, hi = layer.crop[a]
        extra = lo - hi
        if lo < 0:
            raise Unsupported("PyTorch has no negative padding")
        if extra >= max(layer.stride[a], layer.dilation[a]):
            raise Unsupported("PyTorch wants output_padding below stride or dilation")
        padding.append(lo)
        output_padding.append(max(extra, 0))
        cut.append(max(-extra, 0))
    arguments = {
        "stride": list(layer.stride),
        "padding": padding,
        "output_padding": output_padding,
        "dilation": list(layer.dilation),
        "groups": layer.groups,
    }
    return arguments, (cut[0], cut[1])


def _torch_pass(
    torch: Any, layer: Layer, pass_name: str, conv: Callable[..., Any]
) -> Callable[..., tuple]:
    arguments, cut = _torch_arguments(layer)
    height, width = layer.out_size
    masks = {
        "dx": (True, False, False),
        "dw": (False, True, False),
        "dwb": (False, True, True),
        "step": (True, True, True),
    }

    def forward(x: Any, w: Any, b: Any) -> Any:
        y = conv(x, w, b, **arguments)
        return y[:, :, :height, :width] if any(cut) else y

    def backward(x: Any, w: Any, dy: Any, mask: tuple[bool, ...]) -> tuple:
        if any(cut):  # what autograd does with the slice
            dy = torch.nn.functional.pad(dy, (0, cut[1], 0, cut[0]))
        grads = torch.ops.aten.convolution_backward(
            dy,
            x,
            w,
            [layer.cout] if mask[2] else None,
            arguments["stride"],
            arguments["padding"],
            arguments["dilation"],
            True,
            arguments["output_padding"],
            layer.groups,
            list(mask),
        )
        return tuple(g for g, wanted in zip(grads, mask, strict=True) if wanted)

    def run(x: Any, w: Any, b: Any, dy: Any) -> tuple:
        if pass_name in ("fwd", "fwdb"):
            return (forward(x, w, b if pass_name == "fwdb" else None),)
        if pass_name == "step":
            return (forward(x, w, b), *backward(x, w, dy, masks["step"]))
        return backward(x, w, dy, masks[pass_name])

    return run


def _torch_runner(
    layer: Layer, pass_name: str, precision: str, peer: str, sets: list[Arrays]
) -> Runner:
    torch = _torch()
    if precision == "high":
        raise Unsupported("cuDNN has no class between TF32 and float32")
    conv = torch.nn.functional.conv_transpose2d
    if peer == "flaggems":
        conv = _flag_gems(pass_name, precision)
    run = _torch_pass(torch, layer, pass_name, conv)
    on_gpu = jax.default_backend() == "gpu"
    views = _torch_sets(torch, layer, sets)
    facts: dict[str, Any] = {}

    def prepare() -> None:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = precision == "default"
        torch.backends.cuda.matmul.allow_tf32 = precision == "default"

    def wait(out: Any) -> None:
        del out
        if on_gpu:
            torch.cuda.synchronize()

    def call(i: int) -> tuple:
        with torch.no_grad():
            return run(*views[i])

    def compile_() -> None:
        prepare()
        start = time.perf_counter()
        wait(call(0))
        facts["compile_s"] = time.perf_counter() - start
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            out = call(0)
            wait(out)
            results = sum(t.numel() * t.element_size() for t in out)
            peak = torch.cuda.max_memory_allocated() - before - results
            facts["temp_bytes"] = max(int(peak), 0)

    return Runner(compile_, call, wait, prepare, in_threads=False, facts=facts)


def _flag_gems(pass_name: str, precision: str) -> Callable[..., Any]:
    try:
        import flag_gems
    except ImportError as error:
        raise Unsupported("flag_gems is not installed") from error
    conv = getattr(flag_gems, "conv_transpose2d", None)
    if conv is None or precision != "default":
        raise Unsupported("flag_gems has no such operation")
    if pass_name not in ("fwd", "fwdb"):
        raise Unsupported("flag_gems is measured forward only")
    return conv


PEERS = (*_JAX_PEERS, "torch", "flaggems")


def make(
    layer: Layer, pass_name: str, precision: str, peer: str, sets: list[Arrays]
) -> Runner:
    """One peer for one pass.

    Raises:
        Unsupported: if it can't run the problem or is not installed.
    """
    build = _torch_runner if peer in ("torch", "flaggems") else _jax_runner
    return build(layer, pass_name, precision, peer, sets)


def make_inputs(layer: Layer, count: int, seed: int) -> list[Arrays]:
    """Fresh random inputs: `count` sets of x, w, b and dy."""
    dtype = JAX_DTYPES[layer.dtype]
    fan = layer.cin // layer.groups * layer.kernel[0] * layer.kernel[1]
    shapes = [layer.x_shape, layer.w_shape, (layer.cout,), layer.y_shape]
    scales = [1.0, fan**-0.5, 1.0, 1.0]

    @jax.jit
    def draw(key: Any) -> tuple:
        keys = jax.random.split(key, len(shapes))
        return tuple(
            (jax.random.normal(k, shape, jnp.float32) * scale).astype(dtype)
            for k, shape, scale in zip(keys, shapes, scales, strict=True)
        )

    # A generator that is cheap to compile: every layer compiles it anew.
    keys = jax.random.split(jax.random.key(seed, impl="unsafe_rbg"), count)
    sets = [draw(keys[i]) for i in range(count)]
    jax.block_until_ready(sets)
    return sets
