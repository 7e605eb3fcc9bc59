"""Two times for every row, taken the same way for JAX and for PyTorch.

wall_ms    calls are enqueued back to back, the last one is waited for, and the host's
           clock is divided by their number. What a program with nothing else to do
           gets; below about 0.1 ms it is dispatch, not the device.
device_ms  time in which the device was busy with the call's kernels and copies, from a
           profiler trace. JAX's profiler records the kernels of the whole process,
           PyTorch's too, so one instrument measures both. Gaps between kernels are not
           counted. None where there is no such trace (a CPU).

Ratios compare one quantity on both sides: device_ms if both rows have it, else wall_ms.

Inputs rotate among sets that together exceed the second-level cache twice, so that no
call finds its operands there. (For the smallest layers 64 sets don't: their row says
"cold": false.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from benchmarks.peers import Runner

_ROUNDS = 5
_ROUND_SECONDS = 0.02
_LONG = 0.05  # seconds of a call from which on wall clock and device time are one
_PREFIX = "benchmark window "
_MARGIN = 0.001  # seconds of quiet at both ends of a window


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How often a row is called.

    Attributes:
        rounds: number of wall clock readings.
        calls: calls in one round.
        traced: calls in one window of a trace; there are two windows. None for calls so
            long that what lies between kernels doesn't count.
    """

    rounds: int
    calls: int
    traced: int


def schedule(seconds: float, reps: int = 20, cap: float = 1.5) -> Schedule:
    """At least `reps` calls; more if they are short, fewer if they exceed `cap`.

    Args:
        seconds: what one call takes, roughly.
        reps: calls wanted at least.
        cap: seconds that wall clock readings, or trace windows, may take.
    """
    seconds = max(seconds, 1e-6)
    total = min(reps, max(3 if seconds < 1 else 1, int(cap / seconds)))
    rounds = min(_ROUNDS, total)
    calls = max(math.ceil(total / rounds), min(200, int(_ROUND_SECONDS / seconds)), 1)
    return Schedule(rounds, calls, 0 if seconds > _LONG else math.ceil(total / 2))


def first_call(runner: Runner) -> tuple[tuple, float]:
    """Warms up, and estimates the time of a call; returns set 0's results too."""
    runner.prepare()
    out = runner.call(0)
    runner.wait(out)
    start = time.perf_counter()
    runner.wait(runner.call(0))
    seconds = time.perf_counter() - start
    return out, seconds


def run_calls(runner: Runner, sets: int, calls: int, first: int = 0) -> float:
    """Seconds for some calls, the last one waited for."""
    out = None
    start = time.perf_counter()
    for r in range(first, first + calls):
        out = runner.call(r % sets)
    runner.wait(out)
    return time.perf_counter() - start


def interleaved_wall(
    runners: Sequence[Runner], schedules: Sequence[Schedule], sets: int
) -> list[list[float]]:
    """Milliseconds a call, one list per runner; rounds of all runners alternate."""
    times: list[list[float]] = [[] for _ in runners]
    for r in range(max((s.rounds for s in schedules), default=0)):
        for runner, plan, found in zip(runners, schedules, times, strict=True):
            if r < plan.rounds:
                runner.prepare()
                seconds = run_calls(runner, sets, plan.calls, r * plan.calls)
                found.append(seconds / plan.calls * 1e3)
    return times


# -- device time from a trace --


@dataclasses.dataclass(frozen=True)
class Event:
    """An interval of a trace, in nanoseconds."""

    name: str
    start: float
    duration: float

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.duration


def busy(events: Iterable[Event]) -> float:
    """Nanoseconds in which at least one event ran."""
    total, until = 0.0, -math.inf
    for e in sorted(events, key=lambda e: e.start):
        total += max(0.0, e.end - max(e.start, until))
        until = max(until, e.end)
    return total


def split_calls(events: Sequence[Event], calls: int) -> list[float] | None:
    """Busy milliseconds of each of `calls` equal calls, or None if they don't divide.

    Every call of one program enqueues the same kernels, so the events in order of time
    fall into equal parts.
    """
    if not events or len(events) % calls:
        return None
    ordered = sorted(events, key=lambda e: e.start)
    size = len(ordered) // calls
    parts = (ordered[i : i + size] for i in range(0, len(ordered), size))
    return [busy(part) / 1e6 for part in parts]


@dataclasses.dataclass(frozen=True)
class DeviceTimes:
    """What a trace says of one runner.

    Attributes:
        times: busy milliseconds of each call; a mean if calls can't be told apart.
        calls: number of calls behind them.
        kernels: kernels and copies in one call, on average.
        names: the kernels of one call, longest first.
    """

    times: list[float]
    calls: int
    kernels: float
    names: list[str]


def read_windows(
    windows: dict[str, list[Event]], calls: dict[int, int]
) -> dict[int, DeviceTimes]:
    """Turns the events of each window into device times by runner number.

    Args:
        windows: events by window name, "<runner>.<window>".
        calls: calls in one window, by runner.
    """
    found: dict[int, DeviceTimes] = {}
    for number, count in calls.items():
        parts = [
            ev for k, ev in windows.items() if int(k.split(".")[0]) == number and ev
        ]
        if not parts:
            continue
        times: list[float] = []
        for events in parts:
            each = split_calls(events, count)
            times += each or [busy(events) / 1e6 / count]
        longest: dict[str, float] = {}
        for e in parts[0]:
            longest[e.name] = longest.get(e.name, 0.0) + e.duration
        total = count * len(parts)
        found[number] = DeviceTimes(
            times,
            total,
            sum(map(len, parts)) / total,
            sorted(longest, key=lambda k: -longest[k])[:4],
        )
    return found


def device_events(planes: Iterable[Any]) -> tuple[list[Event], list[Event]]:
    """Splits a profile into (kernels and copies on GPUs, windows on the host)."""
    kernels: list[Event] = []
    windows: list[Event] = []
    for plane in planes:
        on_gpu = plane.name.startswith("/device:GPU")
        if not on_gpu and not plane.name.startswith("/host:CPU"):
            continue
        for line in plane.lines:
            # Lines that are not streams repeat the same kernels by module or by op.
            if on_gpu and not line.name.startswith("Stream"):
                continue
            for e in line.events:
                if on_gpu:
                    kernels.append(Event(e.name, e.start_ns, e.duration_ns))
                elif e.name.startswith(_PREFIX):
                    name = e.name.removeprefix(_PREFIX)
                    windows.append(Event(name, e.start_ns, e.duration_ns))
    return kernels, windows


def assign(
    kernels: Sequence[Event], windows: Sequence[Event]
) -> dict[str, list[Event]]:
    """Kernels by the window that holds their middle; those in none are dropped."""
    ordered = sorted(windows, key=lambda w: w.start)
    found: dict[str, list[Event]] = {w.name: [] for w in ordered}
    position = 0
    for e in sorted(kernels, key=lambda e: e.start):
        middle = e.start + e.duration / 2
        while position < len(ordered) and ordered[position].end < middle:
            position += 1
        if position < len(ordered) and ordered[position].start <= middle:
            found[ordered[position].name].append(e)
    return found


@contextlib.contextmanager
def _window(name: str) -> Iterator[None]:
    with jax.profiler.TraceAnnotation(_PREFIX + name):
        time.sleep(_MARGIN)
        yield
        time.sleep(_MARGIN)


def traced(
    runners: Sequence[Runner], schedules: Sequence[Schedule], sets: int
) -> dict[int, DeviceTimes]:
    """Device times of runners, by number, from one trace over all of them.

    Each has two windows, the second round in the opposite order, so that a drift of the
    clocks shows as spread and favours nobody. A runner without events is absent.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    order = [k for k, plan in enumerate(schedules) if plan.traced]
    if not order:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            for part, numbers in enumerate((order, order[::-1])):
                for k in numbers:
                    runner, calls = runners[k], schedules[k].traced
                    runner.prepare()
                    runner.wait(runner.call(0))  # outside: whatever it left behind
                    with _window(f"{k}.{part}"):
                        run_calls(runner, sets, calls, part * calls)
        finally:
            jax.profiler.stop_trace()
        files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
        if not files:
            return {}
        profile = jax.profiler.ProfileData.from_file(str(files[-1]))
        kernels, windows = device_events(profile.planes)
    counts = {k: schedules[k].traced for k in order}
    return read_windows(assign(kernels, windows), counts)


def agree(device_ms: float, wall_ms: float) -> bool:
    """Whether a device time can be true beside a wall clock time of the same calls.

    The device cannot be busy for longer than the calls take; and calls that take long
    are not spent waiting for the host. Otherwise kernels went to the wrong window.
    """
    if device_ms > 1.2 * wall_ms + 0.01:
        return False
    return device_ms > 0 and (wall_ms < 2.0 or device_ms > 0.5 * wall_ms)


def call_overhead(runner: Runner, calls: int = 300) -> tuple[float, float]:
    """Microseconds a call, (enqueued back to back, each waited for)."""
    runner.prepare()
    run_calls(runner, 1, 20)
    together = min(run_calls(runner, 1, calls) for _ in range(3)) / calls
    start = time.perf_counter()
    for _ in range(calls):
        runner.wait(runner.call(0))
    alone = (time.perf_counter() - start) / calls
    return together * 1e6, alone * 1e6
