"""The run: what is measured in which order, and how a row comes about.

Work is done in groups: one layer in one dtype and layout, with as many (pass,
precision, peer) items as still lack a row. A group draws its inputs once, compiles all
items, times them in alternating rounds, checks their results and writes their rows.
Groups come in tiers, the most telling first: the three passes of our rows and of the
main peers on every layer, then the other passes and precisions, then peers in the
layout that isn't ours.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import check, floors, machine, peers, shapes, stats, timing
from benchmarks.shapes import Layer
from benchmarks.store import Store

MAIN_PASSES = ("fwd", "dx", "dw")
_MAIN_PEERS = ("ours", "torch", "lax", "xla")
# Code that only differs from "lax" in how it is called, and how far it is measured.
_FEW_PASSES = {
    "lax": (*MAIN_PASSES, "step"),
    "lax_transpose": ("fwd", "step"),
    "flax": ("fwdb", "step"),
}
# In the layout that isn't ours.
_FOREIGN_PASSES = {"torch": MAIN_PASSES, "flax": ("step",)}


@dataclasses.dataclass(frozen=True)
class Item:
    """One row to be measured: a pass, an error class, a peer."""

    pass_name: str
    precision: str
    peer: str


@dataclasses.dataclass(frozen=True)
class Group:
    """A layer with the items that share its inputs."""

    tier: int
    layer: Layer
    items: tuple[Item, ...]


@dataclasses.dataclass(frozen=True)
class Options:
    """What a run is asked for; see `benchmarks.__main__` for the words.

    Attributes:
        passes: of `floors.PASSES`.
        dtypes: of `shapes.DTYPES`, or "own".
        layouts: of `shapes.LAYOUTS`, or "own".
        precisions: of "default", "high", "highest".
        peers: of `peers.PEERS`.
        rows: our rows, measured each by name beside "ours".
        budget: seconds.
        reps: calls at least, of what is short enough.
        limit: seconds that compiling one item may take.
        jobs: items compiled at the same time.
        both_layouts: measure PyTorch and flax in the other layout too.
    """

    passes: tuple[str, ...] = MAIN_PASSES
    dtypes: tuple[str, ...] = ("own",)
    layouts: tuple[str, ...] = ("own",)
    precisions: tuple[str, ...] = ("default",)
    peers: tuple[str, ...] = _MAIN_PEERS
    rows: tuple[str, ...] = ()
    budget: float = float("inf")
    reps: int = 20
    limit: float = 90.0
    jobs: int = 1
    both_layouts: bool = False


def _precisions(layer: Layer, peer: str, asked: Iterable[str], gpu: bool) -> list[str]:
    """Error classes of a peer that the asked classes of ours are compared with."""
    asked = list(asked)
    if layer.dtype != "fp32" or not gpu:
        return ["default"]
    if stats.is_ours(peer):
        return asked
    if peer == "xla":  # its HIGH would be TF32: our row takes HIGHEST for it
        return list(dict.fromkeys("highest" if p == "high" else p for p in asked))
    if peer in ("flax", "flaggems", "lax_transpose"):
        return [p for p in asked if p == "default"]
    # DEFAULT meets the peers' strict float32 too; HIGH and HIGHEST meet nothing else.
    return [*(["default"] if "default" in asked else []), "highest"]


def _tier(item: Item, layer: Layer) -> int:
    main = item.pass_name in MAIN_PASSES and item.peer in _MAIN_PEERS
    if main and item.precision == "default":
        return 0
    # cuDNN's strict float32 decides some rows; lax runs the same library.
    if main and item.peer == "torch":
        return 0
    if main or stats.is_ours(item.peer) or item.peer == "torch":
        return 1
    return 2


def plan(layers: list[Layer], options: Options, gpu: bool) -> list[Group]:
    """Groups in the order of their value.

    Args:
        layers: in the suite's order; larger ones come first within core and the rest.
        options: what is asked for.
        gpu: whether this is a GPU run.
    """
    seeds = shapes.seed_ids()
    ordered = sorted(
        layers,
        key=lambda x: (x.id not in seeds, not x.core, -x.macs * (x.id not in seeds)),
    )
    names = [*options.peers, *(f"{stats.OURS}@{row}" for row in options.rows)]
    groups: dict[tuple[int, int, Layer], list[Item]] = {}
    for number, layer in enumerate(ordered):
        wanted = shapes.variants(layer, list(options.dtypes), list(options.layouts))
        other = []
        if options.both_layouts:
            for v in wanted:
                flipped = "NHWC" if v.layout == "NCHW" else "NCHW"
                twin = dataclasses.replace(v, layout=flipped)
                other += [twin] if twin not in wanted else []
        for variant in [*wanted, *other]:
            foreign = variant in other
            for peer in names:
                if foreign and peer not in _FOREIGN_PASSES:
                    continue
                few = _FOREIGN_PASSES if foreign else _FEW_PASSES
                for precision in _precisions(variant, peer, options.precisions, gpu):
                    for pass_name in options.passes:
                        if pass_name not in few.get(peer, options.passes):
                            continue
                        # cuDNN takes a minute to tune it in channels_last.
                        if foreign and (pass_name, precision) == ("dw", "highest"):
                            continue
                        item = Item(pass_name, precision, peer)
                        tier = 2 if foreign else _tier(item, variant)
                        groups.setdefault((tier, number, variant), []).append(item)
    # Python's sort keeps the order of variants within a layer.
    return [
        Group(tier, variant, tuple(items))
        for (tier, _, variant), items in sorted(
            groups.items(), key=lambda kv: (kv[0][0], kv[0][1])
        )
    ]


def row_key(layer: Layer, item: Item) -> tuple[str, ...]:
    """The key that the row of an item will have."""
    return stats.key(_blank(layer, item, "", ""))


def _blank(layer: Layer, item: Item, status: str, reason: str) -> dict[str, Any]:
    return {
        "id": layer.id,
        "pass": item.pass_name,
        "dtype": layer.dtype,
        "layout": layer.layout,
        "cut": layer.cut,
        "shape": str(layer),
        "precision": item.precision,
        "peer": item.peer,
        "status": status,
        "reason": reason,
    }


class Session:
    """Measures groups into a store until the budget is spent.

    Args:
        store: where rows go.
        options: what is asked for.
        facts: this run's machine.
        say: prints a line.
        start: when the budget began to run, by `time.monotonic`.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        facts: dict[str, Any],
        say: Callable[[str], None],
        start: float | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._commit = facts["commit"]
        self._gpu = facts["platform"] == "gpu"
        self._say = say
        self._start = time.monotonic() if start is None else start
        self._seconds: list[float] = []  # an item, in each group so far
        self._stages: list[float] = []  # when a group had compiled, and had checked
        self.abandoned = False
        self.trace = self._gpu

    @property
    def left(self) -> float:
        """Seconds left of the budget."""
        return self._options.budget - (time.monotonic() - self._start)

    def run(
        self, groups: list[Group], begin: Callable[[int], None] = lambda position: None
    ) -> bool:
        """Measures what has no row yet; returns whether everything was done.

        Args:
            groups: what to measure.
            begin: called with each group's position before it begins.
        """
        for position, group in enumerate(groups):
            begin(position)
            todo = [
                i for i in group.items if not self._store.done(row_key(group.layer, i))
            ]
            if not todo:
                continue
            typical = sorted(self._seconds)[len(self._seconds) // 2 :][:1] or [1.0]
            fit = int((self.left - 5.0) / typical[0]) if self.left < 1e9 else len(todo)
            if fit < 1:
                rest = len(groups) - position
                self._say(f"budget spent; {rest} groups left: run again to go on")
                return False
            began = time.monotonic()
            label = f"{group.layer.id} {group.layer.dtype} {group.layer.layout}"
            try:
                rows = self._group(group.layer, todo[:fit])
            except Exception as error:
                # Out of memory while drawing inputs, say: blank, and on.
                reason = f"{type(error).__name__}: {error}"
                self._say(f"{label}: {reason[:300]}")
                rows = [
                    _blank(group.layer, i, "error", reason[:300]) for i in todo[:fit]
                ]
            self._store.add(rows)
            self._free()
            took = time.monotonic() - began
            self._seconds.append(took / len(todo[:fit]))
            self._say(
                f"-- {label}: {len(rows)} rows in {took:.1f} s{self._parts(began)}"
            )
            if fit < len(todo):
                self._say("budget spent: run again to go on")
                return False
        return True

    def _parts(self, began: float) -> str:
        """What the time of a group went into."""
        marks = [began, *self._stages, time.monotonic()]
        self._stages = []
        if len(marks) != 4:
            return ""
        spent = (b - a for a, b in itertools.pairwise(marks))
        return " (compile {:.0f}, check {:.0f}, time {:.0f})".format(*spent)

    def _free(self) -> None:
        gc.collect()
        if self._gpu:
            try:
                import torch
            except ImportError:
                return
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _group(self, layer: Layer, items: list[Item]) -> list[dict[str, Any]]:
        count = machine.input_sets(layer, self._gpu)
        seed = int.from_bytes(os.urandom(4), "little") >> 1
        sets = peers.make_inputs(layer, count, seed)
        reference = check.Reference(layer, sets[0], seed)
        rows: dict[Item, dict[str, Any]] = {}
        twins: dict[Item, Item] = {}
        ready = self._compile(layer, items, sets, rows, twins)
        self._stages = [time.monotonic()]
        plans: dict[Item, timing.Schedule] = {}
        for item in list(ready):
            if self.left < 3.0:
                self._say("budget spent inside a group")
                ready.pop(item)
                continue
            row = _blank(layer, item, "ok", "") | {"row": ready[item].row}
            row |= {"sets": count, "commit": self._commit, "seed": seed}
            smallest = min(_size(layer.x_shape), _size(layer.y_shape))
            row["cold"] = count * smallest * layer.itemsize >= 2**27
            rows[item] = row
            try:
                seconds = self._verify(ready[item], item, layer, reference, row)
            except Exception as error:
                row |= {"status": "error", "reason": _short(error)}
            else:
                plans[item] = timing.schedule(
                    seconds, self._options.reps, 1.5 if self._gpu else 0.6
                )
            if row["status"] != "ok":
                self._say_row(row)
                ready.pop(item)
        self._stages.append(time.monotonic())
        self._time(list(ready), ready, plans, count, rows)
        for item, row in rows.items():
            if item in ready:
                row |= ready[item].facts
                self._finish(layer, row)
                self._say_row(row)
        for item, ours in twins.items():
            if ours in rows:
                rows[item] = rows[ours] | {"peer": item.peer, "same_as": ours.peer}
        return list(rows.values())

    def _compile(
        self,
        layer: Layer,
        items: list[Item],
        sets: list[peers.Arrays],
        rows: dict[Item, dict[str, Any]],
        twins: dict[Item, Item],
    ) -> dict[Item, peers.Runner]:
        """Compiles what can be, in threads where it may; the rest become blanks.

        Where "xla" is the very program that "ours" is, one of the two is enough: it
        goes into `twins`.
        """
        made: dict[Item, str] = {}
        ready: dict[Item, peers.Runner] = {}
        pending: dict[Item, tuple[peers.Runner, concurrent.futures.Future[None]]] = {}
        jobs = self._options.jobs
        if _size(layer.x_shape) + _size(layer.y_shape) > 2**27:
            # XLA tries algorithms while it compiles, on arrays of the problem's size.
            jobs = min(jobs, 2)
        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        later: list[tuple[Item, peers.Runner]] = []
        for item in items:
            try:
                runner = peers.make(
                    layer, item.pass_name, item.precision, item.peer, sets
                )
            except peers.Unsupported as reason:
                rows[item] = _blank(layer, item, "blank", str(reason))
            except Exception as error:
                rows[item] = _blank(layer, item, "error", _short(error))
            else:
                made[item] = runner.row
                ours = dataclasses.replace(item, peer=stats.OURS)
                if item.peer == "xla" and made.get(ours) == runner.row:
                    twins[item] = ours
                elif runner.in_threads:
                    pending[item] = (runner, pool.submit(runner.compile))
                else:
                    later.append((item, runner))
        waves = -(-len(pending) // jobs)
        deadline = time.monotonic() + min(
            self._options.limit * max(waves, 1), self.left
        )
        for item, (runner, future) in pending.items():
            try:
                future.result(timeout=max(0.1, deadline - time.monotonic()))
                ready[item] = runner
            except TimeoutError:
                self.abandoned |= not future.cancel()
                if self.left > 3.0:
                    reason = f"compiling took over {self._options.limit:.0f} s"
                    rows[item] = _blank(layer, item, "error", reason)
            except Exception as error:
                rows[item] = _blank(layer, item, "error", _short(error))
        pool.shutdown(wait=False, cancel_futures=True)
        # PyTorch tries cuDNN's algorithms in its first call: alone on the device.
        for item, runner in later:
            try:
                runner.compile()
                ready[item] = runner
            except Exception as error:
                rows[item] = _blank(layer, item, "error", _short(error))
        return {item: ready[item] for item in items if item in ready}

    def _verify(
        self,
        runner: peers.Runner,
        item: Item,
        layer: Layer,
        reference: check.Reference,
        row: dict[str, Any],
    ) -> float:
        """Checks the first results, and returns about how long a call takes."""
        out, seconds = timing.first_call(runner)
        names = peers.OUTPUTS[item.pass_name]
        if len(out) != len(names):
            raise AssertionError(f"{len(out)} results, expected {names}")
        errors = {}
        for name, result in zip(names, out, strict=True):
            kind = "y_plain" if item.pass_name == "fwd" else name
            errors[name] = reference.error(kind, result)
        row["error"] = max(errors.values())
        strict = item.precision if self._gpu or layer.dtype != "fp32" else "highest"
        for worst in sorted(errors, key=lambda k: errors[k]):
            terms = layer.n * math.prod(layer.size) if worst in ("dw", "db") else 1
            allowed = stats.limit(layer.dtype, strict, worst, terms)
            if errors[worst] <= allowed:
                continue
            row["status"] = "wrong"
            row["reason"] = (
                f"{worst} is off by {errors[worst]:.1e}, allowed {allowed:.0e}"
            )
        return seconds

    def _time(
        self,
        items: list[Item],
        ready: dict[Item, peers.Runner],
        plans: dict[Item, timing.Schedule],
        sets: int,
        rows: dict[Item, dict[str, Any]],
    ) -> None:
        runners = [ready[i] for i in items]
        schedules = [plans[i] for i in items]
        walls = timing.interleaved_wall(runners, schedules, sets)
        device: dict[int, timing.DeviceTimes] = {}
        if self.trace and runners:
            try:
                device = timing.traced(runners, schedules, sets)
            except Exception as error:
                self.trace = False
                self._say(f"no device times from here on: {_short(error)}")
        for k, item in enumerate(items):
            found = stats.summarize(walls[k])
            assert found is not None
            row = rows[item]
            row["wall_ms"], row["wall_spread"] = found.median, found.spread
            row["wall_count"] = schedules[k].rounds * schedules[k].calls
            if k in device and (busy := stats.summarize(device[k].times)):
                row["kernels"] = round(device[k].kernels, 2)
                row["kernel_names"] = [name[:80] for name in device[k].names]
                if not timing.agree(busy.median, found.median):
                    row["doubtful_device_ms"] = busy.median
                    continue
                row["device_ms"], row["device_spread"] = busy.median, busy.spread
                row["device_count"] = device[k].calls
        short = [i for i in items if plans[i].traced]
        lost = sum("device_ms" not in rows[i] for i in short)
        if self.trace and lost:
            self._say(f"{lost} of {len(short)} rows got no credible device time")

    def _finish(self, layer: Layer, row: dict[str, Any]) -> None:
        """Adds the floor and what follows from it."""
        ceilings = self._store.get("ceilings") or {}
        least = floors.floor(
            layer,
            row["pass"],
            row["precision"],
            ceilings.get("copy_tb_s"),
            ceilings.get("tflops", {}),
        )
        row["floor_bytes"], row["floor_flops"] = least.bytes, least.flops
        row["floor_memory_ms"], row["floor_compute_ms"] = (
            least.memory_ms,
            least.compute_ms,
        )
        row["floor_ms"] = least.ms
        ms = row.get("device_ms") or row["wall_ms"]
        row["gb_s"] = least.bytes / ms / 1e6
        row["tflop_s"] = least.flops / ms / 1e9
        if least.ms:
            row["of_floor"] = least.ms / ms

    def _say_row(self, row: dict[str, Any]) -> None:
        head = f"{row['id']:<28} {row['dtype']} {row['layout']} {row['pass']:<4} "
        head += f"{row['precision']:<7} {row['peer']:<13}"
        if row["status"] != "ok":
            self._say(f"{head} {row['status'].upper()}: {row['reason'][:200]}")
            return
        device = f"{row['device_ms']:9.4f}" if row.get("device_ms") else "        -"
        text = f"{head} device {device} wall {row['wall_ms']:9.4f} ms"
        text += f" +-{row['wall_spread']:.0%} err {row['error']:.0e}"
        if "of_floor" in row:
            text += f" {row['of_floor']:4.0%} of floor"
        self._say(f"{text} {row.get('row') or ''}".rstrip())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"
