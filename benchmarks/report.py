"""REPORT.md and the lists that a terminal shows, from result files."""

from __future__ import annotations

import collections
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import shapes, stats, store
from benchmarks.floors import PASSES

Row = Mapping[str, Any]
Data = Mapping[str, Any]

_REASONS = pathlib.Path(__file__).with_name("reasons.json")
_WORDS = {
    "fwd": "forward",
    "fwdb": "forward with bias",
    "dx": "input gradient",
    "dw": "weight gradient",
    "dwb": "weight and bias gradient",
    "step": "training step (forward with bias, all gradients)",
}
_PRECISIONS = {
    "default": "DEFAULT (TF32 class) against the faster of TF32 and strict float32",
    "high": "HIGH (three products) against strict float32",
    "highest": "HIGHEST (float32) against strict float32",
}


def newest(paths: Iterable[pathlib.Path]) -> list[Data]:
    """The newest result file of each card, by the date of its last run."""
    best: dict[str, Data] = {}
    for path in paths:
        data = store.load(path)
        card = data["machine"]["card"]
        if card not in best or _date(best[card]) < _date(data):
            best[card] = {**data, "file": path.name}
    return [best[card] for card in sorted(best, key=lambda c: (_is_cpu(best[c]), c))]


def _date(data: Data) -> str:
    return max(run["date"] for run in data.get("runs") or [data["machine"]])


def _is_cpu(data: Data) -> bool:
    return data["machine"].get("platform") != "gpu"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; columns after the first are right-aligned."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|---|" + "---:|" * (len(head) - 1))
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows)]


def number(value: float | None, digits: int = 3) -> str:
    """A number with a few significant digits, or "" of nothing."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.{digits}g}"
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if "e" in text else text


def milliseconds(row: Row | None) -> str:
    """The time that a row is judged by, or what is wrong with it."""
    if row is None or row["status"] == "blank":
        return ""
    if row["status"] != "ok":
        return row["status"].upper()
    return number(row.get("device_ms") or row["wall_ms"])


def ratios(rows: Sequence[Row], pass_name: str, precision: str) -> list[dict[str, Any]]:
    """Our rows of a pass and class, each with its best peer and its floor."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(stats.problem(row), []).append(row)
    found = []
    for row in rows:
        if row["pass"] != pass_name or row["precision"] != precision:
            continue
        if not stats.is_ours(row["peer"]) or row["status"] == "blank":
            continue
        entry: dict[str, Any] = {"row": row, "ratio": None, "peer": None, "xla": None}
        entry["others"] = groups[stats.problem(row)]
        if stats.ok(row):
            if best := stats.best_peer(row, entry["others"]):
                entry["peer"], entry["ratio"] = best
            for other in entry["others"]:
                same = other["peer"] == "xla" and other["precision"] == precision
                if same and stats.ok(other):
                    theirs, mine, _ = stats.same_quantity(other, row)
                    entry["xla"] = theirs / mine
        found.append(entry)
    return found


def _named(row: Row | None) -> str:
    if row is None:
        return ""
    strict = " fp32" if row["dtype"] == "fp32" and row["precision"] == "highest" else ""
    return f"{row['peer']}{strict} {milliseconds(row)}"


def _elsewhere(row: Row, rows: Sequence[Row]) -> str:
    """The best time of a peer in the other layout: what changing it would buy."""
    times = [
        (r.get("device_ms") or r["wall_ms"], r)
        for r in rows
        if stats.ok(r)
        and (r["id"], r["pass"], r["dtype"]) == (row["id"], row["pass"], row["dtype"])
        and r["layout"] != row["layout"]
        and not stats.is_ours(r["peer"])
        and r["peer"] != "xla"
        and (r["precision"] == "highest" or row["precision"] == "default")
    ]
    if not times:
        return ""
    ms, best = min(times, key=lambda t: t[0])
    return f"{best['peer']} {number(ms)}"


def _pass_section(
    rows: Sequence[Row], pass_name: str, precision: str, gpu: bool
) -> list[str]:
    entries = ratios(rows, pass_name, precision)
    if not entries:
        return []
    entries.sort(key=lambda e: e["ratio"] if e["ratio"] is not None else float("inf"))
    title = _WORDS[pass_name].capitalize()
    lines = [f"### {title}: {_PRECISIONS[precision]}" if gpu else f"### {title}", ""]
    means = [e["ratio"] for e in entries if e["ratio"] and e["row"]["peer"] == "ours"]
    if (mean := stats.geomean(means)) is not None:
        won = sum(r >= 1 for r in means)
        lines += [
            f"Speed over the best peer: geometric mean {number(mean)} over "
            f"{len(means)} rows, {won} of them at 1 or above.",
            "",
        ]
    head = ["layer", "dtype", "layout", "row", "ours ms", "best peer ms", "ratio"]
    head += ["ratio to xla", "GB/s", "TFLOP/s", "of floor", "error", "temp MB"]
    head += ["peer, other layout"]
    cells = []
    for e in entries:
        r = e["row"]
        of_floor = f"{r['of_floor']:.0%}" if r.get("of_floor") else ""
        temp = r.get("temp_bytes")
        cells.append(
            [
                r["id"] + (f" ({r['cut']})" if r.get("cut") else ""),
                r["dtype"],
                r["layout"],
                (r.get("row") or "") + (" (forced)" if "@" in r["peer"] else ""),
                milliseconds(r),
                _named(e["peer"]),
                number(e["ratio"]),
                number(e["xla"]),
                number(r.get("gb_s")),
                number(r.get("tflop_s")),
                of_floor,
                f"{r['error']:.0e}" if r.get("error") is not None else "",
                number(temp / 1e6) if temp is not None else "",
                _elsewhere(r, rows),
            ]
        )
    return [*lines, *table(head, cells), ""]


def _worst(rows: Sequence[Row], count: int = 10) -> list[str]:
    found = [
        e
        for p in PASSES
        for c in _PRECISIONS
        for e in ratios(rows, p, c)
        if e["ratio"] is not None and e["row"]["peer"] == "ours"
    ]
    if not found:
        return []
    found.sort(key=lambda e: e["ratio"])
    head = ["layer", "pass", "dtype", "precision", "row", "ours ms", "best peer ms"]
    cells = [
        [
            e["row"]["id"],
            e["row"]["pass"],
            e["row"]["dtype"],
            e["row"]["precision"],
            e["row"].get("row") or "",
            milliseconds(e["row"]),
            _named(e["peer"]),
            number(e["ratio"]),
            why(e["row"]),
        ]
        for e in found[:count]
    ]
    title = f"### The {len(cells)} worst rows"
    return [title, "", *table([*head, "ratio", "why"], cells), ""]


def why(row: Row) -> str:
    """What is known of why a row loses: of reasons.json the first that fits it."""
    for reason in json.loads(_REASONS.read_text(encoding="utf-8")):
        fits = {key: value for key, value in reason.items() if key != "why"}
        if all(re.search(v, str(row.get(k) or "")) for k, v in fits.items()):
            return reason["why"]
    return ""


def _side_by_side(rows: Sequence[Row]) -> list[str]:
    """Every peer's time on the seed problems."""
    seeds = shapes.seed_ids()
    columns: dict[tuple[str, str], None] = {}
    lines: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for row in rows:
        if row["id"] in seeds and row["status"] != "blank":
            column = (row["peer"], row["precision"] if row["dtype"] == "fp32" else "")
            columns[column] = None
            lines.setdefault(stats.problem(row), {})[column] = milliseconds(row)
    if not lines:
        return []
    rank = [*peer_order(p for p, _ in columns)]
    ordered = sorted(columns, key=lambda c: (rank.index(c[0]), c[1]))
    head = ["seed", "pass", "dtype", "layout", *(" ".join(c).strip() for c in ordered)]
    keys = sorted(lines, key=lambda k: (seeds.index(k[0]), *k[2:4], PASSES.index(k[1])))
    cells = [
        [*k[:2], *k[2:4], *(lines[k].get(column, "") for column in ordered)]
        for k in keys
    ]
    return ["### Seed problems, every peer, ms", "", *table(head, cells), ""]


def peer_order(names: Iterable[str]) -> list[str]:
    """Ours first, then the others by name."""
    return sorted(dict.fromkeys(names), key=lambda p: (not stats.is_ours(p), p))


def _failures(rows: Sequence[Row]) -> list[str]:
    bad = [r for r in rows if r["status"] in ("wrong", "error")]
    if not bad:
        return []
    lines = ["### Wrong or failing", ""]
    for r in bad:
        name = " ".join(stats.key(r)).replace("  ", " ")
        reason = r["reason"].split("\n")[0][:160]
        lines.append(f"* `{name}`: {r['status']}: {reason}")
    return [*lines, ""]


def _extras(data: Data, gpu: bool) -> list[str]:
    lines = []
    if overheads := data.get("overheads"):
        lines += [
            "### Host time of a call with next to nothing to do",
            "",
            "Microseconds a call on a 1x1x2x2 input, under `jax.jit` unless eager.",
            "",
        ]
        cells = [
            [name, number(t["enqueued"]), number(t["waited"])]
            for name, t in overheads.items()
        ]
        lines += [*table(["who", "enqueued", "waited for"], cells), ""]
    seconds: dict[str, list[float]] = {}
    for r in data["rows"]:
        if stats.ok(r) and r.get("compile_s") is not None:
            seconds.setdefault(r["peer"], []).append(r["compile_s"])
    if seconds:
        lines += ["### First call", ""]
        lines += [
            "Seconds to compile a pass (JAX), or of the first call, in which cuDNN's "
            "algorithms are tried (torch)."
            + (" JAX's programs compile several at a time." if gpu else ""),
            "",
        ]
        cells = []
        for peer, values in seconds.items():
            middle = stats.summarize(values)
            if middle:
                shown = [number(middle.median), number(max(values)), str(len(values))]
                cells.append([peer, *shown])
        lines += [*table(["who", "median", "largest", "passes"], cells), ""]
    return lines


def section(data: Data, plots: Sequence[str] = ()) -> list[str]:
    """One card's part of the report."""
    machine = data["machine"]
    gpu = not _is_cpu(data)
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    ceilings = data.get("ceilings") or {}
    lines = [f"## {machine['card']}", ""]
    where = f"Commit {machine['commit']}, {_date(data)} UTC, {versions}"
    where += f", driver {machine['driver']}" if machine.get("driver") else ""
    lines += [f"{where}. File `{data.get('file', '')}`.", ""]
    commits = collections.Counter(r["commit"] for r in data["rows"] if "commit" in r)
    if len(commits) > 1:  # a resumed file
        of = ", ".join(f"{count} of {name}" for name, count in commits.most_common())
        lines += [f"Rows by commit: {of}.", ""]
    if ceilings:
        rates = ", ".join(
            f"{k} {number(v)}" for k, v in ceilings["tflops"].items() if v is not None
        )
        lines += [
            f"Ceilings measured in the run: copy {number(ceilings['copy_tb_s'])} TB/s "
            f"(read and written), matrix product {rates} TFLOP/s.",
            "",
        ]
    lines += [f"![{name}]({name})\n" for name in plots]
    rows = data["rows"]
    lines += _worst(rows) + _side_by_side(rows)
    for precision in _PRECISIONS:
        for pass_name in PASSES:
            lines += _pass_section(rows, pass_name, precision, gpu)
    return [*lines, *_failures(rows), *_extras(data, gpu)]


_INTRO = """# Benchmarks

Rendered by `python -m benchmarks report` from the newest result file of each card. How
the times are taken, and what the floors count, is said at the head of
`benchmarks/timing.py` and `benchmarks/floors.py`.

* Times are milliseconds a call: on a GPU the time in which the device was busy, on a
  CPU wall clock. Weight packing and workspace count.
* *ratio* is the best peer's time over ours in the same layout: above 1 we are faster.
  Peers are PyTorch (cuDNN in benchmark mode), JAX's own ways and what else was
  installed; *xla* is our own portable row and has a column to itself.
* *of floor* is the floor over our time: the larger of needed bytes at the measured copy
  rate and needed products at the fastest measured rate that the error class allows.
* Every result was checked against float64 in the same run: *error* is the relative
  norm. A wrong result shows as WRONG, and what could not run is left out.
"""


def render(datas: Iterable[tuple[Data, Sequence[str]]]) -> str:
    """The report of several cards.

    Args:
        datas: per card its results and the plots (paths beside the report) to show.
    """
    parts = [_INTRO.rstrip("\n"), ""]
    for data, plots in datas:
        parts += section(data, plots)
    return "\n".join(parts).rstrip("\n") + "\n"


def summary(rows: Sequence[Row]) -> list[tuple[list[str], list[list[str]]]]:
    """For a terminal: (head, cells) of one table a pass and class."""
    tables = []
    for precision in _PRECISIONS:
        for pass_name in PASSES:
            cells = [
                [
                    e["row"]["id"],
                    f"{e['row']['dtype']} {e['row']['layout']}",
                    e["row"].get("row") or "",
                    milliseconds(e["row"]),
                    _named(e["peer"]),
                    number(e["ratio"]),
                    f"{e['row']['of_floor']:.0%}" if e["row"].get("of_floor") else "",
                ]
                for e in ratios(rows, pass_name, precision)
            ]
            if cells:
                head = [f"{pass_name} {precision}", "", "row", "ours ms", "best peer"]
                tables.append(([*head, "ratio", "of floor"], cells))
    return tables
