"""Statistics of repeated times, and the rules by which two rows are compared."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# Largest relative error (norm against float64) at which a result still counts, by dtype
# and error class. A TF32 result (3e-4) must not pass for strict float32, and a sum over
# millions of positions in float32 must.
_LIMITS = {
    ("fp32", "default"): 2e-3,
    ("fp32", "high"): 5e-5,
    ("fp32", "highest"): 5e-5,
    ("fp64", "default"): 1e-12,
    ("fp16", "default"): 5e-3,
    ("bf16", "default"): 2e-2,
}

_CLASS_ORDER = ("default", "high", "highest")

OURS = "ours"


def is_ours(peer: str) -> bool:
    """Whether a peer is one of our rows ("ours", or "ours@row" forced by name)."""
    return peer.partition("@")[0] == OURS


_LONG_SUM = 2**20


def limit(dtype: str, precision: str, result: str = "y", terms: int = 1) -> float:
    """Largest error at which a result still counts.

    Tensor cores cut sums off instead of rounding them, so the error of one accumulator
    grows in proportion to what it adds: beyond 2^20 terms a result gets more room. A
    bias gradient sums terms of both signs, which some libraries do in 16 bits: there
    16-bit results get more room.

    Args:
        dtype: of `shapes.DTYPES`.
        precision: the error class.
        result: "y", "dx", "dw" or "db".
        terms: the length of the sum behind one element.
    """
    allowed = _LIMITS.get((dtype, precision)) or _LIMITS[(dtype, "default")]
    if result == "db" and dtype in ("fp16", "bf16"):
        allowed *= 5
    return allowed * max(1.0, terms / _LONG_SUM)


@dataclasses.dataclass(frozen=True)
class Times:
    """What repeated times say.

    Attributes:
        median: the middle time.
        spread: half the interquartile range over the median.
        count: how many.
    """

    median: float
    spread: float
    count: int


def summarize(times: Sequence[float]) -> Times | None:
    """Median and spread; None of nothing."""
    if not times:
        return None
    middle = statistics.median(times)
    if len(times) < 2 or middle <= 0:
        return Times(middle, 0.0, len(times))
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Times(middle, (high - low) / 2 / middle, len(times))


def geomean(values: Iterable[float]) -> float | None:
    """Geometric mean of the positive values; None of none."""
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def ok(row: Row) -> bool:
    """Whether a row holds a time of a right result."""
    return row.get("status") == "ok" and row.get("wall_ms") is not None


def problem(row: Row) -> tuple[str, ...]:
    """What must agree for two rows to be comparable."""
    return (row["id"], row["pass"], row["dtype"], row["layout"], row.get("cut", ""))


def key(row: Row) -> tuple[str, ...]:
    """What names a row in a file."""
    return (*problem(row), row["precision"], row["peer"])


def qualifies(peer: Row, ours: Row) -> bool:
    """Whether a peer's row is at least as accurate in class as one of ours.

    A DEFAULT row meets the peers' TF32 and their strict float32, whichever is faster; a
    HIGH or HIGHEST row meets strict float32 only.
    """
    if problem(peer) != problem(ours) or not ok(peer) or is_ours(peer["peer"]):
        return False
    order = _CLASS_ORDER.index
    return order(peer["precision"]) >= order(ours["precision"])


def same_quantity(a: Row, b: Row) -> tuple[float, float, str]:
    """The times of two rows in a quantity that both have: device time if possible."""
    for name in ("device_ms", "wall_ms"):
        if a.get(name) and b.get(name):
            return a[name], b[name], name
    raise ValueError(f"no common time: {key(a)} and {key(b)}")


def best_peer(
    ours: Row, rows: Iterable[Row], exclude: frozenset[str] = frozenset({"xla"})
) -> tuple[Row, float] | None:
    """The fastest row of other people's code, and our speed over it.

    Args:
        ours: one of our rows.
        rows: rows to look among; those that don't qualify are passed over.
        exclude: peers that are not other people's code: our own portable row.

    Returns:
        (row, peer's time / our time), or None. Above 1 we are faster.
    """
    found = []
    for row in rows:
        if row["peer"] not in exclude and qualifies(row, ours):
            theirs, mine, _ = same_quantity(row, ours)
            found.append((theirs / mine, row))
    if not found:
        return None
    ratio, row = min(found, key=lambda pair: pair[0])
    return row, ratio


@dataclasses.dataclass(frozen=True)
class Change:
    """One row in two files.

    Attributes:
        key: the row.
        before: its time in the first file, ms.
        after: its time in the second, ms.
        noise: the larger of 5% and the rows' spreads together.
    """

    key: tuple[str, ...]
    before: float
    after: float
    noise: float

    @property
    def ratio(self) -> float:
        """After over before: above 1 is slower."""
        return self.after / self.before

    @property
    def verdict(self) -> str:
        """ "slower", "faster" or "same", beyond the noise."""
        if self.ratio > 1 + self.noise:
            return "slower"
        return "faster" if self.ratio < 1 - self.noise else "same"


def compare(before: Iterable[Row], after: Iterable[Row]) -> list[Change]:
    """Rows that both files hold, the worst change first."""
    old = {key(r): r for r in before if ok(r)}
    changes = []
    for row in after:
        if not ok(row) or key(row) not in old:
            continue
        first = old[key(row)]
        a, b, name = same_quantity(first, row)
        spread = name.replace("_ms", "_spread")
        noise = (first.get(spread) or 0.0) + (row.get(spread) or 0.0)
        changes.append(Change(key(row), a, b, max(0.05, noise)))
    return sorted(changes, key=lambda c: -c.ratio)


def newly_wrong(before: Iterable[Row], after: Iterable[Row]) -> list[tuple[str, ...]]:
    """Rows that were right in the first file and are wrong or failing in the second."""
    right = {key(r) for r in before if ok(r)}
    bad = (r for r in after if r.get("status") in ("wrong", "error"))
    return [key(r) for r in bad if key(r) in right]
