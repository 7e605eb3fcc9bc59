"""Pictures of a result file: ratio per layer, and the roofline. Needs matplotlib."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import report, stats

_MISSING = "matplotlib is not installed: no pictures (pip install matplotlib)."
_COLORS = {"fwd": "#4878cf", "dx": "#ee854a", "dw": "#6acc64"}


class NoMatplotlibError(RuntimeError):
    """Raised where a picture was asked for and can't be drawn."""


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NoMatplotlibError(_MISSING) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def ratio_bars(axis: Any, rows: Sequence[Mapping[str, Any]], precision: str) -> None:
    """Speed over the best peer, a bar per layer and pass, on a logarithmic axis."""
    found: dict[str, dict[str, float]] = {}
    for pass_name in _COLORS:
        for e in report.ratios(rows, pass_name, precision):
            if e["ratio"] and e["row"]["peer"] == "ours":
                row = e["row"]
                name = f"{row['id']} {row['dtype']} {row['layout']}"
                found.setdefault(name, {})[pass_name] = e["ratio"]
    names = sorted(found, key=lambda n: -(stats.geomean(found[n].values()) or 0))
    for k, (pass_name, color) in enumerate(_COLORS.items()):
        positions = [
            i + (k - 1) * 0.27 for i, n in enumerate(names) if pass_name in found[n]
        ]
        heights = [found[n][pass_name] for n in names if pass_name in found[n]]
        left = [min(h, 1.0) for h in heights]
        width = [abs(h - 1.0) for h in heights]
        axis.barh(positions, width, 0.27, left=left, color=color, label=pass_name)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names, fontsize=6)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlabel(
        f"speed over the best peer, {precision} (right of 1: ours is faster)"
    )
    if names:
        axis.legend(loc="lower right", fontsize=7)


def roofline(axis: Any, data: Mapping[str, Any]) -> None:
    """TFLOP/s over operations per byte of our rows, under the measured ceilings."""
    ceilings = data.get("ceilings") or {}
    copy = ceilings.get("copy_tb_s")
    for pass_name, color in _COLORS.items():
        rows = [
            r
            for r in data["rows"]
            if stats.ok(r) and r["peer"] == "ours" and r["pass"] == pass_name
        ]
        points = [(r["floor_flops"] / r["floor_bytes"], r["tflop_s"]) for r in rows]
        if points:
            xs, ys = zip(*points, strict=True)
            axis.scatter(xs, ys, s=12, color=color, label=pass_name)
    xs = [2**k for k in range(-2, 13)]
    if copy:
        axis.plot(xs, [x * copy for x in xs], color="black", linewidth=0.8)
    for name, rate in (ceilings.get("tflops") or {}).items():
        if rate:
            axis.axhline(rate, color="gray", linewidth=0.6)
            axis.text(xs[0], rate * 1.04, name, fontsize=6)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    top = max([v for v in (ceilings.get("tflops") or {}).values() if v], default=1.0)
    axis.set_ylim(top / 1e5, top * 2)
    axis.set_xlabel("operations per needed byte")
    axis.set_ylabel("TFLOP/s")
    axis.legend(loc="lower right", fontsize=7)


def draw(
    data: Mapping[str, Any], path: pathlib.Path, precision: str = "default"
) -> None:
    """One picture with both plots.

    Args:
        data: a result file.
        path: where the PNG goes.
        precision: the error class that the bars show.

    Raises:
        NoMatplotlibError: if matplotlib is not there.
    """
    plt = _pyplot()
    layers = {(r["id"], r["dtype"], r["layout"]) for r in data["rows"]}
    height = min(max(4.0, 0.2 * len(layers)), 60.0)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(14, height), gridspec_kw={"width_ratios": [1, 1]}
    )
    ratio_bars(left, data["rows"], precision)
    roofline(right, data)
    right.set_box_aspect(0.8 if height < 8 else math.pi / 4)
    figure.suptitle(f"{data['machine']['card']}, {data['machine']['commit']}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
