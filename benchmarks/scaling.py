"""Training steps of a small decoder on one device and on all devices of the process.

python -m benchmarks scaling --json OUT.json

The decoder is a stack of transposed convolutions with ReLUs between. A step is the
forward pass, the mean squared error, the gradients of weights and biases, and an update
by gradient descent, all under one `jax.jit`. It is cut in two ways over a mesh of all
devices: `batch` (data parallel) and `height` (each device has a strip of every image).

strong  the same problem on one device and on all N
weak    on all N devices a problem N times as large: of N times the examples, or of
        images N times as high

wall_ms is the median of steps that are waited for one by one. Loss and gradients of the
first step are compared with one device's, which for a larger problem takes the examples
in N parts. `collectives` counts what the compiled program exchanges; a program that
gathers an image is wrong, whatever its time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LIMITS = {"fp32": 2e-3, "bf16": 2e-2, "fp16": 5e-3}
_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Conv:
    """One layer: output channels, and kernel, stride and padding of both axes."""

    channels: int
    kernel: int
    stride: int
    padding: int

    def grown(self, size: int) -> int:
        return (size - 1) * self.stride - 2 * self.padding + self.kernel


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The decoder and its images, in NCHW."""

    batch: int
    channels: int
    height: int
    width: int
    layers: tuple[Conv, ...]
    dtype: str = "fp32"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the image and of every layer's result."""
        found = [(self.batch, self.channels, self.height, self.width)]
        for layer in self.layers:
            _, _, h, w = found[-1]
            found.append((self.batch, layer.channels, layer.grown(h), layer.grown(w)))
        return tuple(found)

    def __str__(self) -> str:
        return " > ".join("x".join(map(str, shape)) for shape in self.shapes)


def parse_layers(text: str) -> tuple[Conv, ...]:
    """Layers as ``channels:kernel:stride:padding``, separated by commas.

    Raises:
        argparse.ArgumentTypeError: if they are none.
    """
    try:
        layers = tuple(
            Conv(*map(int, word.split(":"))) for word in text.split(",") if word.strip()
        )
    except (TypeError, ValueError):
        layers = ()
    if not layers or any(min(c.channels, c.kernel, c.stride) < 1 for c in layers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not channels:kernel:stride:padding,..., like 64:4:2:1"
        )
    return layers


def parameters(decoder: Decoder) -> list[Any]:
    """Weights and biases, the same for the same channels and kernels."""
    import jax.numpy as jnp
    import numpy as np

    rng, dtype = np.random.default_rng(1), jnp.dtype(_DTYPES[decoder.dtype])
    before, found = decoder.channels, []
    for layer in decoder.layers:
        shape = (before, layer.channels, layer.kernel, layer.kernel)
        scale = layer.stride / (before * layer.kernel**2) ** 0.5
        weight = rng.standard_normal(shape) * scale
        bias = rng.standard_normal(layer.channels) * 0.1
        found.append((weight.astype(dtype), bias.astype(dtype)))
        before = layer.channels
    return found


def examples(decoder: Decoder, first: Any, count: int) -> tuple[Any, Any]:
    """Some of the images and their targets: a hash of each element's place."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    dtype = jnp.dtype(_DTYPES[decoder.dtype])

    def noise(shape: tuple[int, ...], seed: int) -> Any:
        bits = jnp.full(shape, seed, np.uint32)
        for axis in range(len(shape)):
            place = jax.lax.broadcasted_iota(np.uint32, shape, axis)
            if axis == 0:
                place = place + jnp.asarray(first).astype(np.uint32)
            bits = (bits ^ place) * np.uint32(0x9E3779B1)
            bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x85EBCA77)
            bits = bits ^ (bits >> np.uint32(13))
        unit = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        return ((unit - np.float32(0.5)) * np.float32(12**0.5)).astype(dtype)

    image, *_, result = ((count, *shape[1:]) for shape in decoder.shapes)
    return noise(image, 2), noise(result, 3)


def loss_of(decoder: Decoder, backend: str) -> Callable[[Any, Any, Any], Any]:
    """The mean squared error, of parameters, images and targets."""
    import jax
    import jax.numpy as jnp

    from jax_transconv import conv_transpose2d

    def loss(params: Any, x: Any, target: Any) -> Any:
        for i, (layer, (w, b)) in enumerate(zip(decoder.layers, params, strict=True)):
            x = jax.nn.relu(x) if i else x
            x = conv_transpose2d(
                x, w, b, stride=layer.stride, padding=layer.padding, backend=backend
            )
        return jnp.square((x - target).astype(jnp.float32)).mean()

    return loss


def step_of(decoder: Decoder, backend: str) -> Callable[[Any, Any, Any], Any]:
    """A training step: new parameters, the loss, and the gradients behind them."""
    import jax

    loss = loss_of(decoder, backend)

    def step(params: Any, x: Any, target: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, target)
        new = jax.tree.map(lambda p, g: p - g * _RATE, params, grads)
        return new, value, grads

    return step


def collectives(text: str) -> tuple[dict[str, int], int]:
    """What a compiled program exchanges.

    Args:
        text: the program, as `compiled.as_text()` gives it.

    Returns:
        How many there are of each kind, and the elements of the largest array that an
        all-gather or an all-to-all gives.
    """
    counts, largest = dict.fromkeys(_COLLECTIVES, 0), 0
    pattern = rf"= (.*?) ({'|'.join(_COLLECTIVES)})(?:-start)?\("
    for shapes, name in re.findall(pattern, text):
        counts[name] += 1
        if name in ("all-gather", "all-to-all"):
            for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
                size = 1
                for n in filter(None, shape.split(",")):
                    size *= int(n)
                largest = max(largest, size)
    return {k: v for k, v in counts.items() if v}, largest


def kernels(text: str) -> dict[str, int]:
    """Which kernels of ours a compiled program calls, and how often."""
    from jax_transconv.ffi import targets

    names = {number: row for row, number in targets.algorithm_ids().items()}
    found: dict[str, int] = {}
    pattern = r'custom_call_target="jax_transconv\.(\w+)\.v1".*?algorithm = (\d+)'
    for pass_name, number in re.findall(pattern, text):
        name = f"{pass_name} {names.get(int(number), number)}"
        found[name] = found.get(name, 0) + 1
    return found


def _distance(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest relative error, by norm, of some arrays."""
    import numpy as np

    errors = []
    for g, e in zip(got, want, strict=True):
        g, e = (np.asarray(v).astype(np.float64) for v in (g, e))
        errors.append(np.linalg.norm(g - e) / max(np.linalg.norm(e), 1e-300))
    return float(max(errors))


@dataclasses.dataclass(frozen=True)
class Options:
    """How a run measures.

    Attributes:
        steps: how many steps are timed.
        warm_up: how many are taken before.
        backend: of `conv_transpose2d`.
    """

    steps: int = 20
    warm_up: int = 5
    backend: str = "auto"


def reference(decoder: Decoder, device: Any, parts: int, options: Options) -> Any:
    """Loss and gradients on one device, the examples taken in equal parts."""
    import jax
    import numpy as np

    loss = jax.jit(jax.value_and_grad(loss_of(decoder, options.backend)))
    count = decoder.batch // parts
    draw = jax.jit(functools.partial(examples, decoder, count=count))
    with jax.default_device(device):
        params = parameters(decoder)
        sums: list[Any] = []
        for part in range(parts):
            images = draw(np.uint32(part * count))
            leaves = [
                np.asarray(v).astype(np.float64)
                for v in jax.tree.leaves(loss(params, *images))
            ]
            sums = (
                [s + v for s, v in zip(sums, leaves, strict=True)] if part else leaves
            )
    return [s / parts for s in sums]


def measure(
    decoder: Decoder, cut: str, devices: Sequence[Any], options: Options, want: Any
) -> tuple[dict[str, Any], list[Any]]:
    """One row: times, agreement and exchanges of a step on these devices.

    Args:
        decoder: the whole problem.
        cut: "batch" or "height".
        devices: those of the mesh.
        options: how to measure.
        want: loss and gradients to agree with, or None.

    Returns:
        The row, and the loss and gradients.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from benchmarks import stats

    mesh = Mesh(np.asarray(devices), ("devices",))
    whole = NamedSharding(mesh, P())
    spec = {"batch": P("devices"), "height": P(None, None, "devices")}[cut]
    images = NamedSharding(mesh, spec)
    draw = jax.jit(
        lambda: examples(decoder, np.uint32(0), decoder.batch),
        out_shardings=(images, images),
    )
    x, target = draw()
    params = jax.device_put(parameters(decoder), whole)
    start = time.perf_counter()
    step = jax.jit(
        step_of(decoder, options.backend), in_shardings=(whole, images, images)
    )
    step = step.lower(params, x, target).compile()
    compile_s = time.perf_counter() - start
    text = step.as_text()
    counts, gathered = collectives(text)

    params, value, grads = step(params, x, target)
    got = [np.asarray(v) for v in jax.tree.leaves((value, grads))]
    for _ in range(options.warm_up):
        params, _, _ = jax.block_until_ready(step(params, x, target))
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        params, _, _ = jax.block_until_ready(step(params, x, target))
        times.append(time.perf_counter() - start)
    summary = stats.summarize(times)
    assert summary is not None

    smallest = min(int(np.prod(s)) for s in decoder.shapes) // len(devices)
    error = None if want is None else _distance(got, want)
    reasons = []
    if error is not None and not error <= _LIMITS[decoder.dtype]:
        reasons.append(f"loss or gradients are off by {error:.1e}")
    if gathered >= smallest:
        reasons.append(f"an array of {gathered} elements is gathered")
    row = {
        "devices": len(devices),
        "shapes": str(decoder),
        "status": "wrong" if reasons else "ok",
        "reason": "; ".join(reasons),
        "wall_ms": summary.median * 1e3,
        "wall_spread": summary.spread,
        "wall_count": summary.count,
        "compile_s": compile_s,
        "loss": float(got[0]),
        "error": error,
        "collectives": counts,
        "gathered": gathered,
        "kernels": kernels(text),
    }
    return row, got


def run(
    decoder: Decoder, devices: Sequence[Any], options: Options, say: Callable
) -> list[dict[str, Any]]:
    """All rows, the one on a single device first.

    Raises:
        ValueError: if the devices do not divide the problem.
    """
    count = len(devices)
    for name, size in (("batch", decoder.batch), ("height", decoder.height)):
        if size % count:
            raise ValueError(f"{count} devices do not divide a {name} of {size}")
    one, got = measure(decoder, "batch", devices[:1], options, None)
    rows = [{"cut": "", "scaling": "", **one, "speedup": 1.0, "efficiency": 1.0}]
    say(f"1 device: {one['wall_ms']:.3f} ms")
    if count == 1:
        return rows
    larger = {
        "batch": dataclasses.replace(decoder, batch=decoder.batch * count),
        "height": dataclasses.replace(decoder, height=decoder.height * count),
    }
    for cut in ("batch", "height"):
        for scaling, problem in (("strong", decoder), ("weak", larger[cut])):
            want = (
                got
                if scaling == "strong"
                else reference(problem, devices[0], count, options)
            )
            row, _ = measure(problem, cut, devices, options, want)
            work = count if scaling == "weak" else 1
            speedup = work * one["wall_ms"] / row["wall_ms"]
            ratios = {"speedup": speedup, "efficiency": speedup / count}
            rows.append({"cut": cut, "scaling": scaling, **row, **ratios})
            say(f"{cut}, {scaling}, {count} devices: {row['wall_ms']:.3f} ms")
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A head and one line a row."""
    lines = [
        [
            *("cut", "scaling", "devices", "ms", "spread", "speedup", "efficiency"),
            *("error", "exchanges"),
        ]
    ]
    for r in rows:
        sent = ", ".join(f"{n} {k}" for k, n in r["collectives"].items())
        lines.append(
            [
                r["cut"] or "none",
                r["scaling"] or "-",
                str(r["devices"]),
                f"{r['wall_ms']:.3f}",
                f"{r['wall_spread']:.1%}",
                f"{r['speedup']:.2f}",
                f"{r['efficiency']:.0%}",
                "-" if r["error"] is None else f"{r['error']:.1e}",
                (sent or "-") + (f"  WRONG: {r['reason']}" if r["reason"] else ""),
            ]
        )
    return lines


def _default_path(facts: dict[str, Any], count: int) -> pathlib.Path:
    """Beside the other results, in a folder of its own: it has other rows."""
    from benchmarks import store

    path = store.default_path(facts)
    return path.parent / "scaling" / f"{path.stem}-x{count}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--json", type=pathlib.Path, help="result file; replaced if it is there")
    add("--platform", help="cpu or cuda; JAX's default otherwise")
    add("--devices", type=int, help="how many; all of the process by default")
    add("--batch", type=int, help="examples; 16, on a CPU 8")
    add("--channels", type=int, help="of the image; 64, on a CPU 8")
    add("--size", type=int, help="height and width; 512, on a CPU 32")
    add(
        "--layers",
        type=parse_layers,
        help="channels:kernel:stride:padding,...; 64:3:1:1,64:4:2:1, on a CPU 8 each",
    )
    add("--dtype", choices=tuple(_DTYPES), default="fp32")
    add("--backend", default="auto", help="of conv_transpose2d")
    add("--steps", type=int, default=20, help="timed steps")
    add("--warm-up", type=int, default=5, help="steps before them")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measures, writes the file and prints a table; 1 if a row is wrong."""
    args = _parser().parse_args(argv)

    import jax

    from benchmarks import machine

    def say(line: str) -> None:
        print(line, flush=True)

    devices = jax.devices(args.platform)[: args.devices]
    small = devices[0].platform == "cpu"
    width = 8 if small else 64
    decoder = Decoder(
        args.batch or (8 if small else 16),
        args.channels or width,
        args.size or (32 if small else 512),
        args.size or (32 if small else 512),
        args.layers or (Conv(width, 3, 1, 1), Conv(width, 4, 2, 1)),
        args.dtype,
    )
    options = Options(args.steps, args.warm_up, args.backend)
    facts = machine.facts()
    say(f"{len(devices)} x {devices[0].device_kind}, commit {facts['commit']}")
    say(str(decoder))
    if len(devices) == 1:
        say("this process has one device: nothing to compare it with")
    try:
        rows = run(decoder, devices, options, say)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    lines = table(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    data = {
        "machine": facts,
        "devices": [d.device_kind for d in devices],
        "decoder": dataclasses.asdict(decoder),
        "options": dataclasses.asdict(options),
    }
    path = args.json or _default_path(facts, len(devices))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(data, indent=1)[:-2]
    body = ",\n".join("  " + json.dumps(r) for r in rows)
    path.write_text(f'{head},\n "scaling": [\n{body}\n ]\n}}\n')
    say(f"complete: {path}")
    return int(any(r["status"] != "ok" for r in rows))
