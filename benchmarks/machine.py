"""Where a run took place, and what the machine can do at most, measured in the run."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import peers, timing
from benchmarks.shapes import Layer

_PACKAGES = ("jax", "jaxlib", "numpy", "torch", "flax", "triton")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    name = found.group(1).strip() if found else platform.processor() or "CPU"
    return f"{name}, {os.cpu_count()} threads"


def on_gpu() -> bool:
    """Whether JAX's default device is a GPU."""
    return jax.default_backend() == "gpu"


def commit() -> str:
    """This checkout's commit: from BENCH_COMMIT, for copies; else from git."""
    if given := os.environ.get("BENCH_COMMIT"):
        return given
    root = str(pathlib.Path(__file__).parents[1])
    name = _output("git", "-C", root, "rev-parse", "--short=10", "HEAD")
    if not name:
        return "unknown"
    changed = _output("git", "-C", root, "status", "--porcelain", "--", "jax_transconv")
    return f"{name}-dirty" if changed else name


def facts() -> dict[str, Any]:
    """Card, driver, versions, commit, date and command line."""
    import jax_transconv

    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions["jax_transconv"] = jax_transconv.__version__
    if "torch" in versions:
        import torch

        versions["torch"] = torch.__version__
        if on_gpu() and torch.cuda.is_available():
            versions["cuda"] = str(torch.version.cuda)
            versions["cudnn"] = str(torch.backends.cudnn.version())
    card = jax.devices()[0].device_kind if on_gpu() else _cpu_name()
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "card": card,
        "platform": jax.default_backend(),
        "driver": _output(*query).split("\n")[0] if on_gpu() else "",
        "versions": versions,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }


def _seconds(run: Callable[[], None], reps: int = 9) -> float:
    """The least of some times: a ceiling is what the machine can do undisturbed."""
    run()
    times = []
    for _ in range(reps):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _torch_ceilings(gpu: bool) -> dict[str, Any]:
    import torch

    device, size = ("cuda", 8192) if gpu else ("cpu", 1536)
    kinds = {
        "fp32": (torch.float32, False),
        "tf32": (torch.float32, True),
        "bf16": (torch.bfloat16, False),
        "fp16": (torch.float16, False),
        "fp64": (torch.float64, False),
    }
    if not gpu:  # no such units: 16-bit products are not faster than float32's
        kinds = {k: v for k, v in kinds.items() if k in ("fp32", "fp64")}
    calls = 5 if gpu else 1

    def repeat(step: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                step()
            if gpu:
                torch.cuda.synchronize()

        return run

    tflops: dict[str, float | None] = {}
    for name, (dtype, tf32) in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a = torch.randn(size, size, device=device).to(dtype)
        b = torch.randn(size, size, device=device).to(dtype)
        out = torch.empty_like(a)
        step = repeat(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))
        tflops[name] = 2 * size**3 * calls / _seconds(step) / 1e12
        del a, b, out, step
    words = 2**29 if gpu else 2**25
    source = torch.randn(words, device=device)
    target = torch.empty_like(source)
    step = repeat(lambda a=source, b=target: b.copy_(a))
    seconds = _seconds(step)
    copy = 2 * 4 * words * calls / seconds / 1e12
    del source, target, step
    if gpu:
        torch.cuda.empty_cache()
    return {"copy_tb_s": copy, "tflops": tflops, "by": "torch"}


def _jax_ceilings(gpu: bool) -> dict[str, Any]:
    size, words = (8192, 2**29) if gpu else (1536, 2**25)
    key = jax.random.key(0)
    kinds: dict[str, tuple[Any, str]] = {"fp32": (jnp.float32, "highest")}
    if gpu:
        kinds |= {
            "tf32": (jnp.float32, "default"),
            "bf16": (jnp.bfloat16, "default"),
            "fp16": (jnp.float16, "default"),
        }
    tflops: dict[str, float | None] = {}
    for name, (dtype, precision) in kinds.items():
        a = jax.random.normal(key, (size, size), jnp.float32).astype(dtype)
        product = jax.jit(lambda a, p=precision: jnp.matmul(a, a, precision=p))
        run = lambda a=a, f=product: f(a).block_until_ready()  # noqa: E731
        tflops[name] = 2 * size**3 / _seconds(run) / 1e12
    source = jax.random.normal(key, (words,), jnp.float32)
    negate = jax.jit(jnp.negative)
    seconds = _seconds(lambda: negate(source).block_until_ready())
    return {"copy_tb_s": 2 * 4 * words / seconds / 1e12, "tflops": tflops, "by": "jax"}


def ceilings() -> dict[str, Any]:
    """TB/s of a large copy and TFLOP/s of large matrix products, on random data."""
    try:
        import torch

        if torch.cuda.is_available() or not on_gpu():
            return _torch_ceilings(on_gpu())
    except ImportError:
        pass
    return _jax_ceilings(on_gpu())


def highest(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The higher of two measurements of the ceilings: a resumed run has several."""
    if not old:
        return new
    rates = {
        k: max((r for d in (old, new) if (r := d["tflops"].get(k))), default=None)
        for k in {**old["tflops"], **new["tflops"]}
    }
    copy = max(old["copy_tb_s"], new["copy_tb_s"])
    return {**new, "copy_tb_s": copy, "tflops": rates}


def overheads(names: list[str]) -> dict[str, dict[str, float]]:
    """Host time of one call whose kernel is as good as empty, in microseconds.

    Returns:
        By peer: "enqueued", calls back to back, and "waited", each call waited for; for
        "ours (eager)" the same without `jax.jit` around it.
    """
    layer = Layer("overhead", 1, 1, 1, (2, 2), (2, 2), stride=(2, 2))
    sets = peers.make_inputs(layer, 1, 0)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        try:
            runner = peers.make(layer, "fwd", "default", name, sets)
            runner.compile()
        except Exception:  # a peer that fails here is blank, as anywhere
            continue
        together, alone = timing.call_overhead(runner)
        found[name] = {"enqueued": together, "waited": alone}
    if "ours" in names:
        import jax_transconv

        x, w, _, _ = sets[0]
        eager = peers.Runner(
            compile=lambda: None,
            call=lambda i: (jax_transconv.conv_transpose2d(x, w, stride=2),),
            wait=jax.block_until_ready,
        )
        together, alone = timing.call_overhead(eager, 100)
        found["ours (eager)"] = {"enqueued": together, "waited": alone}
    return found


def input_sets(layer: Layer, gpu: bool) -> int:
    """How many input sets exceed the second-level cache twice: at most 64, or 4 GB."""
    if not gpu:
        return 2
    images = [int(np.prod(s)) for s in (layer.x_shape, layer.y_shape)]
    smallest = max(min(images) * layer.itemsize, 1)
    wanted = -(-2 * 64 * 2**20 // smallest)
    affordable = 4 * 2**30 // max(sum(images) * layer.itemsize, 1)
    return max(1, min(wanted, affordable, 64))
