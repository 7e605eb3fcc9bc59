"""The command `jax-transconv`: what is installed, whether it works, what would run.

Each command returns a value for ``--json`` and a text, and an exit code: 0 for yes, 1
for a failed check or an error in what was asked for, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform as host
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

import jax_transconv
from jax_transconv import plan
from jax_transconv.api import Explanation, conv_transpose2d, explanation
from jax_transconv.ffi import targets
from jax_transconv.programs.doctor import Report, diagnose
from jax_transconv.spec import DTYPES, parse_geometry

__all__ = ["main"]

_REQUIRED = ("jax", "jaxlib", "numpy")
_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
_OPTIONAL = ("flax", "equinox", "dm-haiku", "torch", "safetensors")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command found.

    Attributes:
        data: for ``--json``.
        text: for people.
        code: the exit code.
    """

    data: Any
    text: str
    code: int = 0


# -- info --


def info(args: argparse.Namespace) -> Outcome:
    """Versions, devices and modules: what to paste into a report of a fault."""
    del args
    data = {
        "jax-transconv": jax_transconv.__version__,
        "python": host.python_version(),
        "system": f"{host.system()} {host.machine()}",
        "packages": {
            name: _version(name) for name in (*_REQUIRED, *_PLUGINS, *_OPTIONAL)
        },
        "devices": _devices(),
        "ffi": ".".join(map(str, targets.runtime_ffi_version())),
        "modules": {name: _module(name) for name in targets.PLATFORMS},
        "rows": {
            row: row in targets.algorithm_ids() or row.startswith("xla:")
            for row in dict.fromkeys(c.name for c in plan.CANDIDATES)
        },
        "environment": {
            name: os.environ[name]
            for name in ("TRANSCONV_LOG", "TRANSCONV_DISABLE", "JAX_PLATFORMS")
            if name in os.environ
        },
    }
    lines = [f"{k}: {v}" for k, v in data.items() if isinstance(v, str)]
    lines += [f"{k}: {v or 'not installed'}" for k, v in data["packages"].items()]
    lines += [f"device: {d}" for d in data["devices"]]
    lines += [f"module {k}: {_module_text(v)}" for k, v in data["modules"].items()]
    for word, built in (("rows", True), ("rows not built", False)):
        names = [name for name, there in data["rows"].items() if there == built]
        lines += [f"{word}: {', '.join(names)}"] if names else []
    lines += [f"{k}={v}" for k, v in data["environment"].items()]
    return Outcome(data, "\n".join(lines))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    try:
        return [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.local_devices()]
    except Exception as error:  # JAX fails an assertion where a platform is absent
        return [f"none: {_first_line(error)}"]


def _first_line(error: Exception) -> str:
    words = str(error).strip()
    if words:
        return words.splitlines()[0]
    return f"JAX found no device ({type(error).__name__})"


def _module(backend: str) -> dict[str, Any]:
    module = targets.module(backend)
    if module is None:
        why = {
            "cpu": "it was left out of this build",
            "cuda": "the CUDA compiler (nvcc 12.8 or newer) was not found when the "
            "package was built, or TRANSCONV_CUDA=OFF was set; XLA serves the GPU",
        }
        return {"built": False, "reason": why[backend]}
    ffi = ".".join(map(str, module.built_against()))
    return {"built": True, "ffi": ffi} | module.build_info()


def _module_text(found: dict[str, Any]) -> str:
    if not found["built"]:
        return f"not built: {found['reason']}"
    return ", ".join(f"{k} {v}" for k, v in found.items() if k != "built")


# -- check --

# Small problems, one for each kind of kernel: (arguments, x NCHW, weight).
_PROBLEMS: tuple[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]], ...] = (
    ({"stride": 2, "padding": 1}, (2, 16, 12, 13), (16, 16, 4, 4)),
    ({"padding": 1}, (1, 16, 16, 17), (16, 32, 3, 3)),
    ({"stride": (2, 3), "dilation": 2, "groups": 2}, (2, 8, 5, 6), (8, 3, 3, 2)),
    ({"stride": 2, "padding": 1, "groups": 8}, (2, 8, 9, 7), (8, 1, 3, 3)),
)
_BOUNDS = {"float32": 2e-5, "bfloat16": 2e-2}


def check(args: argparse.Namespace) -> Outcome:
    """Runs every row that this machine has against the definition."""
    results = []
    start = time.monotonic()
    checks = list(_checks())
    with _progress(len(checks), quiet=args.json) as tell:
        for name, verify in checks:
            tell(name)
            try:
                error = verify()
            except Exception as fault:  # whatever is wrong here is what was asked for
                error = f"{type(fault).__name__}: {fault}"
            results.append({"check": name, "error": error})
    failed = [r for r in results if r["error"]]
    seconds = round(time.monotonic() - start, 1)
    data = {"passed": not failed, "seconds": seconds, "checks": results}
    lines = [f"FAILED {r['check']}: {r['error']}" for r in failed]
    rows = sorted({r["check"].split()[0] for r in results})
    lines.append(
        f"{len(results) - len(failed)} of {len(results)} checks passed in {seconds} s "
        f"on {jax.local_devices()[0].device_kind}: {', '.join(rows)}"
    )
    return Outcome(data, "\n".join(lines), 1 if failed else 0)


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows each step's name as it begins, on the standard error.

    A bar on a terminal that has rich, plain lines otherwise.
    """
    if quiet:
        yield lambda name: None
        return
    bar = progress_bar(sys.stderr)
    if bar is None:
        numbers = itertools.count(1)
        yield lambda name: print(
            f"{next(numbers)} of {total}: {name}", file=sys.stderr, flush=True
        )
        return
    with bar:
        task = bar.add_task("", total=total, completed=-1)
        yield lambda name: bar.update(task, description=name, advance=1)


def progress_bar(stream: TextIO) -> Any:
    """A rich progress bar, or None if the stream is no terminal or rich is missing."""
    if not stream.isatty():
        return None
    try:
        from rich import console, progress, table
    except ImportError:
        return None
    return progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        # On a narrow terminal the name is cut, and not the rest.
        progress.TextColumn(
            "{task.description}",
            markup=False,
            table_column=table.Column(ratio=1, no_wrap=True),
        ),
        expand=True,
        console=console.Console(file=stream),
        transient=True,
    )


def _checks() -> Iterator[tuple[str, Callable[[], str | None]]]:
    device = plan.device_of(None)
    for arguments, x_shape, w_shape in _PROBLEMS:
        for dtype in _BOUNDS:
            x, w = (jax.ShapeDtypeStruct(s, dtype) for s in (x_shape, w_shape))
            spec = parse_geometry(x, w, precision="highest", **arguments)
            for row in dict.fromkeys(c.name for c in plan.CANDIDATES):
                plans = [plan.choose(p, spec, device, row).row for p in targets.PASSES]
                if row not in plans or None in plans:
                    continue
                if dtype != "float32" and row.startswith("xla:"):
                    continue  # XLA's own kernels, and time is short
                words = " ".join(f"{k}={v}" for k, v in arguments.items())
                yield (
                    f"{row} {dtype} {x_shape} {words}",
                    lambda s=spec, a=arguments, r=row: _verify(s, a, r),
                )


def _verify(spec: Any, arguments: dict[str, Any], row: str) -> str | None:
    """Compares the forward pass with the definition, the others through it.

    The op is linear in x and in the weight, so that both gradients for an output
    gradient ``dy`` satisfy ``<dy, y> = <dx, x> = <dw, w>``: with ``y`` by the
    definition, for several random ``x`` and ``w``.
    """
    rng = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), spec.dtype)

    def f(x: Any, w: Any) -> Any:
        return conv_transpose2d(x, w, precision="highest", backend=row, **arguments)

    x, w = draw(spec.x_shape), draw(spec.w_shape)
    y, pull = jax.vjp(f, x, w)
    dy = draw(spec.y_shape)
    dx, dw = pull(dy)
    faults = [("forward", _distance(y, _definition(spec, x, w)))]
    for _ in range(4):
        other_x, other_w = draw(spec.x_shape), draw(spec.w_shape)
        faults += [
            ("grad_input", _mismatch(dy, _definition(spec, other_x, w), dx, other_x)),
            ("grad_weight", _mismatch(dy, _definition(spec, x, other_w), dw, other_w)),
        ]
    name, worst = max(faults, key=lambda fault: fault[1])
    bound = _BOUNDS[spec.dtype]
    if worst <= bound:  # nan is not
        return None
    return f"{name} is off by {worst:.1e}, allowed {bound:.0e}"


def _definition(spec: Any, x: Any, w: Any) -> np.ndarray:
    """y[s*i + d*k - lo] += x[i] w[k], tap by tap, in float64."""
    g = spec.geometry
    x = np.asarray(x, np.float64).reshape(
        spec.batch, g.groups, spec.in_per_group, *spec.in_size
    )
    w = np.asarray(w, np.float64).reshape(
        g.groups, spec.in_per_group, spec.out_per_group, *spec.kernel_size
    )
    full = [
        (n - 1) * s + g.extent(a, k)
        for a, (n, s, k) in enumerate(
            zip(spec.in_size, g.stride, spec.kernel_size, strict=True)
        )
    ]
    y = np.zeros((spec.batch, g.groups, spec.out_per_group, *full))
    for kh, kw in np.ndindex(*spec.kernel_size):
        rows, columns = (
            slice(d * k, d * k + (n - 1) * s + 1, s)
            for d, k, n, s in zip(
                g.dilation, (kh, kw), spec.in_size, g.stride, strict=True
            )
        )
        y[..., rows, columns] += np.einsum(
            "bgihw,gio->bgohw", x, w[:, :, :, kh, kw], optimize=True
        )
    (top, _), (left, _) = g.crop
    height, width = spec.out_size
    y = y[..., top : top + height, left : left + width]
    return y.reshape(spec.y_shape)


def _distance(got: Any, want: np.ndarray) -> float:
    off = np.linalg.norm(np.asarray(got, np.float64) - want)
    return float(off / np.linalg.norm(want))


def _mismatch(dy: Any, y: np.ndarray, gradient: Any, variable: Any) -> float:
    """How far <dy, y> and <gradient, variable> are apart, for their size."""
    left, right = (
        np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in ((dy, y), (gradient, variable))
    )
    size = np.linalg.norm(np.asarray(dy, np.float64)) * np.linalg.norm(y)
    return float(abs(left - right) / size)


# -- explain, doctor, bench --


def explain(args: argparse.Namespace) -> Outcome:
    """The row of each pass of one problem, and why every other declined."""
    x = jax.ShapeDtypeStruct(args.x, args.dtype)
    weight = jax.ShapeDtypeStruct(args.weight, args.dtype)
    spec = parse_geometry(
        x,
        weight,
        stride=args.stride,
        padding=args.padding,
        output_padding=args.output_padding,
        dilation=args.dilation,
        groups=args.groups,
        layout=args.layout,
        precision=args.precision,
    )
    plan.check_backend(args.backend)
    found = explanation(spec, args.platform, args.backend)
    data = _explanation_data(found)
    idle = {name: p for name, p in found.plans.items() if p.row is None}
    if not idle:
        return Outcome(data, str(found))
    # Rows that were not asked for have nothing to say.
    unasked = f"backend={args.backend!r} was asked for"
    reasons = [r for p in idle.values() for _, r in p.verdicts if r != unasked]
    error = (
        f"explain: backend {args.backend!r} has no row for {', '.join(idle)} of this "
        f"problem: {'; '.join(dict.fromkeys(reasons))}"
    )
    way_out = "Resolution: leave --backend out to see which rows run here."
    return Outcome(data | {"error": error}, f"{error}\n{way_out}", 1)


def _explanation_data(found: Explanation) -> dict[str, Any]:
    return {
        "x": found.spec.x_shape,
        "weight": found.spec.w_shape,
        "y": found.spec.y_shape,
        "dtype": found.spec.dtype,
        "platform": found.device.platform,
        "plans": {
            name: {"row": p.row, "verdicts": dict(p.verdicts)}
            for name, p in found.plans.items()
        },
    }


def doctor(args: argparse.Namespace) -> Outcome:
    """The transposed convolutions of a program, and the plan of each."""
    module_name, _, path = args.function.partition(":")
    if not path:
        raise ValueError(
            f"doctor: the function must be written module:function, got "
            f"{args.function!r}.\nResolution: e.g. jax-transconv doctor model:loss."
        )
    sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        found = getattr(found, name)
    shapes = [_shape_of(text) for text in args.shapes]
    report = diagnose(found, tuple(shapes), {}, args.platform, args.measure)
    return Outcome(_report_data(report), str(report))


def _shape_of(text: str) -> jax.ShapeDtypeStruct:
    """``2,3,32,32`` or ``bfloat16:2,3,32,32``."""
    dtype, _, sizes = text.rpartition(":")
    try:
        shape = tuple(int(n) for n in sizes.split(",") if n)
        return jax.ShapeDtypeStruct(shape, dtype or "float32")
    except (TypeError, ValueError):
        raise ValueError(
            f"doctor: a shape must be written [dtype:]n,n,..., got {text!r}.\n"
            "Resolution: e.g. 2,3,32,32 or bfloat16:2,3,32,32."
        ) from None


def _report_data(report: Report) -> dict[str, Any]:
    return {
        "platform": report.device.platform,
        "findings": [
            {
                "place": f.place,
                "shapes": f.shapes,
                "status": f.status,
                "reason": f.reason,
                "plans": None
                if f.explanation is None
                else {name: p.row for name, p in f.explanation.plans.items()},
                "gains": {
                    name: dataclasses.asdict(gain) for name, gain in f.gains.items()
                },
            }
            for f in report.findings
        ],
    }


def bench(args: argparse.Namespace) -> Outcome:
    """Hands over to the benchmarks of the repository, which are not installed."""
    sys.path.insert(0, os.getcwd())
    spec = importlib.util.find_spec("benchmarks")
    origin = spec.origin if spec else None
    marker = origin and os.path.join(os.path.dirname(origin), "shapes.py")
    if not marker or not os.path.exists(marker):
        text = (
            "bench: the benchmarks are part of the repository, not of the installed "
            "package, and are not in this directory.\n"
            "Resolution: run it in a checkout, or there: python -m benchmarks --help"
        )
        return Outcome({"available": False, "reason": text}, text, 1)
    arguments = args.arguments[args.arguments[:1] == ["--"] :]
    # As `python -m benchmarks`, also where Python does not search this directory.
    program = (
        "import os, runpy, sys; sys.path.append(os.getcwd()); "
        "runpy.run_module('benchmarks', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, *arguments]
    # With --json only the JSON goes to the standard output.
    out = sys.stderr if args.json else None
    code = subprocess.run(command, check=False, stdout=out).returncode
    return Outcome({"available": True, "exit code": code}, "", code)


# -- the command line --


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer, or integers with commas between them"
        ) from None


def _pair(text: str) -> int | tuple[int, ...]:
    values = _integers(text)
    return values[0] if len(values) == 1 else values


def _padding(text: str) -> Any:
    """``1``, ``1,2``, ``SAME``, or a crop ``lo:hi,lo:hi``."""
    if text.isalpha():
        return text
    if ":" not in text:
        return _pair(text)
    try:
        return tuple(tuple(int(n) for n in p.split(":")) for p in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a crop lo:hi,lo:hi of integers"
        ) from None


def _sizes(text: str) -> tuple[int, ...]:
    values = _integers(text)
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} has a negative size")
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax-transconv", description="Transposed convolution for JAX."
    )
    parser.add_argument(
        "--version", action="version", version=jax_transconv.__version__
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(run: Callable[[argparse.Namespace], Outcome]) -> argparse.ArgumentParser:
        line = (run.__doc__ or "").splitlines()[0]
        command = commands.add_parser(run.__name__, help=line, description=line)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    def add_platform(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--platform", choices=plan.PLATFORMS, help="default: JAX's own"
        )

    add(info)
    add(check)

    command = add(explain)
    command.add_argument("x", type=_sizes, help="shape of x, e.g. 8,64,32,32")
    command.add_argument("weight", type=_sizes, help="shape of weight, e.g. 64,3,4,4")
    for name in ("stride", "dilation"):
        command.add_argument(f"--{name}", type=_pair, default=1)
    command.add_argument(
        "--padding", type=_padding, default=0, help="1; 1,2; SAME; or lo:hi,lo:hi"
    )
    command.add_argument("--output-padding", type=_pair, default=0)
    command.add_argument("--groups", type=int, default=1)
    command.add_argument("--layout", default="NCHW")
    command.add_argument("--dtype", choices=DTYPES, default="float32")
    command.add_argument("--precision")
    command.add_argument("--backend", default="auto")
    add_platform(command)

    command = add(doctor)
    command.add_argument("function", help="module:function; it is traced, not run")
    command.add_argument(
        "shapes", nargs="*", help="of its arguments: [dtype:]n,n,..., e.g. 2,3,32,32"
    )
    command.add_argument(
        "--measure", action="store_true", help="time each, as XLA runs it and here"
    )
    add_platform(command)

    command = add(bench)
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="for python -m benchmarks"
    )
    return parser


def _fault_text(error: Exception) -> str:
    try:
        jax.local_devices()
    except Exception as fault:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        return (
            f"jax-transconv: JAX has no device: {_first_line(fault)}; JAX_PLATFORMS is "
            f"{wanted!r}.\nResolution: install the plugin of that platform, e.g. "
            "jax[cuda13], or unset JAX_PLATFORMS."
        )
    return f"{type(error).__name__}: {error}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        outcome = args.run(args)
    except (ValueError, TypeError, ImportError, AttributeError, RuntimeError) as error:
        outcome = Outcome({"error": str(error)}, str(error), 1)
    except Exception as error:  # a user's module, or JAX without the platform asked for
        text = _fault_text(error)
        outcome = Outcome({"error": text}, text, 1)
    if args.json:
        print(json.dumps(outcome.data, indent=2, default=str))
    elif outcome.text:
        print(outcome.text, file=sys.stderr if outcome.code else sys.stdout)
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
