"""Command line: a suite, the report, a comparison of two files, several devices.

python -m benchmarks --suite seeds --passes fwd,dx,dw --budget 480
python -m benchmarks report
python -m benchmarks compare OLD.json NEW.json
python -m benchmarks scaling --json OUT.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ROOT = pathlib.Path(__file__).parent


def _set_up(threads: int) -> None:
    """What must be in the environment before JAX starts."""
    # PyTorch works on the same card, so JAX must not take it whole.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.70")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if _is_cpu() and hasattr(os, "sched_setaffinity"):
        # XLA and PyTorch alike then start that many threads.
        allowed = sorted(os.sched_getaffinity(0))[:threads]
        os.sched_setaffinity(0, allowed)
    if _is_cpu():
        _keep_memory()


def _keep_memory() -> None:
    """Has the C library keep what is freed, as it does by chance without.

    A result of a few megabytes is faulted in anew by every call if its memory went
    back to the system in between. Whether it did depends on what lies above it in the
    heap, for JAX and PyTorch alike, and costs as much as the whole call: without this,
    one and the same row took up to twice the time in one run and not in the next.
    """
    trim_threshold, mmap_max = -1, -4  # from malloc.h
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)


def _is_cpu() -> bool:
    """Whether JAX will run on the CPU, as far as can be told before it starts."""
    signs = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia", "/dev/kfd")
    found = any(map(os.path.exists, signs)) or shutil.which("nvidia-smi")
    return os.environ.get("JAX_PLATFORMS") == "cpu" or not found


def _words(
    text: str, allowed: Sequence[str], aliases: dict[str, str]
) -> tuple[str, ...]:
    found = []
    for word in filter(None, (w.strip() for w in text.split(","))):
        name = aliases.get(word, word)
        if name == "all":
            found += [a for a in allowed if a not in ("own", "all")]
        elif name not in allowed:
            raise argparse.ArgumentTypeError(
                f"{word!r} is none of {', '.join(allowed)}, all"
            )
        else:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _parser() -> argparse.ArgumentParser:
    from benchmarks import floors, peers, shapes

    def words(*allowed: str, **aliases: str) -> Any:
        return lambda text: _words(text, allowed, aliases)

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--suite", default="core", help="seeds, core (default), all, or a JSON file")
    add(
        "--passes",
        type=words(*floors.PASSES, db="dwb"),
        default=("fwd", "dx", "dw"),
        help=f"of {', '.join(floors.PASSES)}; all; default fwd,dx,dw",
    )
    add(
        "--dtypes",
        type=words("own", *shapes.DTYPES),
        default=("own",),
        help="each layer's own by default",
    )
    add(
        "--layouts",
        type=words("own", *shapes.LAYOUTS),
        default=("own",),
        help="each layer's own by default",
    )
    add(
        "--precision",
        type=words("default", "high", "highest"),
        default=("default",),
        help="error classes of float32 on a GPU: default, high, highest; all",
    )
    add(
        "--peers",
        type=words(*peers.PEERS),
        default=("ours", "torch", "lax", "xla"),
        help=f"beside ours, of {', '.join(peers.PEERS)}; all",
    )
    add("--rows", default="", help="our rows to force, too: cuda:simt,...")
    add("--json", type=pathlib.Path, help="result file; resumed if it is there")
    add("--plot", type=pathlib.Path, help="PNG to draw at the end")
    add("--filter", help="regular expression that layer ids must contain")
    add("--budget", type=float, default=float("inf"), help="seconds")
    add("--reps", type=int, default=20, help="calls at least, where time allows")
    add("--limit", type=float, default=90.0, help="seconds to compile one item")
    add(
        "--jobs",
        type=int,
        default=0,
        help="items compiled at a time; GPU up to 8, CPU 1",
    )
    add("--threads", type=int, default=2, help="CPU threads of a CPU run")
    add("--cpu-size", action="store_true", help="cut layers; always so on a CPU")
    add("--both-layouts", action="store_true", help="torch and flax in the other, too")
    add("--retry", action="store_true", help="measure failed and wrong rows again")
    add("--no-trace", action="store_true", help="wall clock only")
    return parser


def _run(argv: Sequence[str]) -> int:
    start = time.monotonic()
    threads = argparse.ArgumentParser(add_help=False)
    threads.add_argument("--threads", type=int, default=2)
    known, _ = threads.parse_known_args(argv)
    _set_up(known.threads)
    args = _parser().parse_args(argv)

    import jax

    if "fp64" in args.dtypes:
        jax.config.update("jax_enable_x64", True)

    from benchmarks import machine, runner, shapes, store

    facts = machine.facts()
    gpu = facts["platform"] == "gpu"
    options = runner.Options(
        passes=args.passes,
        dtypes=args.dtypes,
        layouts=args.layouts,
        precisions=args.precision,
        peers=tuple(dict.fromkeys(("ours", *args.peers))),
        rows=tuple(filter(None, args.rows.split(","))),
        budget=args.budget,
        reps=args.reps,
        limit=args.limit,
        jobs=args.jobs or (min(8, (os.cpu_count() or 2) // 2) if gpu else 1),
        both_layouts=args.both_layouts,
    )
    try:
        layers = shapes.select(shapes.load_suite(args.suite), args.filter)
        results = store.Store(args.json or store.default_path(facts), facts, args.retry)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if args.cpu_size or not gpu:
        layers = [shapes.cut_to(layer) for layer in layers]

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"{facts['card']}, commit {facts['commit']}, {len(layers)} layers")
    session = runner.Session(results, options, facts, say, start)
    session.trace &= not args.no_trace
    results.set(
        "ceilings", machine.highest(results.get("ceilings"), machine.ceilings())
    )
    say(f"ceilings: {_ceilings(results.get('ceilings'))}")
    if not results.get("overheads"):
        names = [p for p in options.peers if p in ("ours", "lax", "torch")]
        results.set("overheads", machine.overheads(names))
    results.write()
    groups = runner.plan(layers, options, gpu)
    with _progress([f"{g.layer.id} {g.layer.dtype}" for g in groups]) as begin:
        done = session.run(groups, begin)
    results.write()
    _show(results.rows, {layer.id for layer in layers})
    say(f"{'complete' if done else 'incomplete'}: {results.path}")
    if args.plot:
        _plot(store.load(results.path), args.plot)
    if session.abandoned:  # a compilation that never ended would keep us here
        sys.stdout.flush()
        os._exit(0)
    return 0


@contextlib.contextmanager
def _progress(names: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """A bar below the lines that are printed, on a terminal that has rich."""
    from jax_transconv.cli import progress_bar

    bar = progress_bar(sys.stdout)
    if bar is None:
        yield lambda position: None
        return
    with bar:
        task = bar.add_task("", total=len(names))
        yield lambda at: bar.update(task, description=names[at], completed=at)


def _ceilings(found: dict[str, Any]) -> str:
    rates = [f"{k} {v:.3g}" for k, v in found["tflops"].items() if v]
    return f"copy {found['copy_tb_s']:.3g} TB/s, TFLOP/s: {', '.join(rates)}"


def _show(rows: list[dict[str, Any]], ids: set[str]) -> None:
    """The summary: rich tables on a terminal that has rich, plain lines otherwise."""
    from benchmarks import report

    tables = report.summary([r for r in rows if r["id"] in ids])
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.table import Table

            for head, cells in tables:
                shown = Table()
                for k, title in enumerate(head):
                    shown.add_column(title, justify="left" if k < 3 else "right")
                for line in cells:
                    shown.add_row(*line)
                Console().print(shown)
            return
    for head, cells in tables:
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for line in (head, *cells):
            padded = (c.ljust(w) for c, w in zip(line, widths, strict=True))
            print("  ".join(padded).rstrip())
        print()


def _plot(data: Any, path: pathlib.Path) -> bool:
    from benchmarks import plots

    try:
        plots.draw(data, path)
    except plots.NoMatplotlibError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _report(argv: Sequence[str]) -> int:
    from benchmarks import report, store

    parser = argparse.ArgumentParser(prog="python -m benchmarks report")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=_ROOT / "REPORT.md")
    args = parser.parse_args(argv)
    files = args.files or sorted(store.RESULTS.glob("*.json"))
    if not files:
        print(f"benchmarks: no result files in {store.RESULTS}", file=sys.stderr)
        return 2
    try:
        datas = report.newest(files)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    shown = []
    for data in datas:
        name = f"plots/{pathlib.Path(data['file']).stem}.png"
        drawn = _plot(data, args.out.parent / name)
        shown.append((data, [name] if drawn else []))
    args.out.write_text(report.render(shown))
    print(args.out)
    return 0


def _compare(argv: Sequence[str]) -> int:
    from benchmarks import stats, store

    parser = argparse.ArgumentParser(prog="python -m benchmarks compare")
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    args = parser.parse_args(argv)
    try:
        before, after = store.load(args.before), store.load(args.after)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    cards = [d["machine"]["card"] for d in (before, after)]
    if cards[0] != cards[1]:
        print(f"two cards: {cards[0]} and {cards[1]}; times of two cards don't compare")
    changes = stats.compare(before["rows"], after["rows"])
    for c in changes:
        if c.verdict != "same":
            name = " ".join(filter(None, c.key))
            print(
                f"{c.verdict} {c.ratio:.3f}x {c.before:.4f} -> {c.after:.4f} ms {name}"
            )
    wrong = stats.newly_wrong(before["rows"], after["rows"])
    for k in wrong:
        print(f"no longer right: {' '.join(filter(None, k))}")
    slower = [c for c in changes if c.verdict == "slower" and stats.is_ours(c.key[-1])]
    same = sum(c.verdict == "same" for c in changes)
    print(f"{len(changes)} rows in both, {same} the same, {len(slower)} of ours slower")
    return 1 if slower or wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status (compare: 1 on a regression of ours)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] == "report":
        return _report(argv[1:])
    if argv and argv[0] == "compare":
        return _compare(argv[1:])
    if argv and argv[0] == "scaling":
        from benchmarks import scaling

        return scaling.main(argv[1:])
    return _run(argv)


if __name__ == "__main__":
    sys.exit(main())
