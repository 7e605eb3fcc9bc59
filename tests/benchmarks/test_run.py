import dataclasses
import io
import json
import os
import subprocess
import sys

import jax
import pytest

from benchmarks import __main__ as cli
from benchmarks import peers, report, runner, shapes, stats, store
from benchmarks.shapes import Layer
from jax_transconv.ffi import targets

SMALL = [
    Layer("a", 2, 4, 6, (5, 6), (3, 3), (2, 2), crop=((1, 0), (1, 0))),
    Layer("g", 1, 4, 6, (4, 4), (3, 2), (2, 3), (2, 1), groups=2),
]
FACTS = {
    "card": "Test CPU",
    "platform": "cpu",
    "driver": "",
    "versions": {"jax": "1"},
    "commit": "abc",
    "date": "2026-01-02 03:04:05",
    "command": "python -m benchmarks",
}
CEILINGS = {"copy_tb_s": 0.01, "tflops": {"fp32": 0.1}}


@pytest.fixture(autouse=True)
def on_the_cpu():
    """As FACTS say: float32 on a GPU is TF32, which a CPU's limits call wrong."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    yield
    jax.config.update("jax_default_device", before)


def _session(path, lines, **options):
    results = store.Store(path, FACTS)
    results.set("ceilings", CEILINGS)
    chosen = runner.Options(**{"peers": ("ours", "lax", "xla"), "reps": 3} | options)
    return runner.Session(results, chosen, FACTS, lines.append), results, chosen


def _run(path, lines, layers=SMALL, **options):
    session, results, chosen = _session(path, lines, **options)
    groups, begun = runner.plan(layers, chosen, gpu=False), []
    done = session.run(groups, begun.append)
    assert begun == list(range(len(begun)))
    assert not done or len(begun) == len(groups)
    return done, results


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal, rich, monkeypatch):
    """A bar below what is printed, where a terminal has rich; else lines alone."""
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    names = ["one [bold]", "two", "three"]
    with cli._progress(names) as begin:
        for position, _ in enumerate(names):
            begin(position)
            print(f"-- {position}")
    shown = out.getvalue()
    assert all(f"-- {i}" in shown for i in range(3))
    if terminal and rich:
        assert "\u2501" in shown  # the bar
        assert "2/3" in shown
        assert names[-1] in shown
    else:
        assert shown == "-- 0\n-- 1\n-- 2\n"


def test_a_run_streams_and_resumes(tmp_path):
    path, lines = tmp_path / "out.json", []
    done, results = _run(path, lines, SMALL[:1])
    assert done
    assert len(results.rows) == 9
    assert {r["status"] for r in results.rows} == {"ok"}
    assert all(r["error"] < 1e-5 and r["wall_ms"] > 0 for r in results.rows)
    assert all(r["floor_ms"] > 0 and r["of_floor"] > 0 for r in results.rows)
    assert json.loads(path.read_text())["rows"] == results.rows

    first = {stats.key(r): r for r in results.rows}
    lines.clear()
    done, results = _run(path, lines)
    assert done
    assert len(results.rows) == 18
    assert not any(line.startswith("a ") for line in lines)
    assert all(r == first[stats.key(r)] for r in results.rows if r["id"] == "a")
    assert len(store.load(path)["runs"]) == 2


def test_ours_is_measured_again_after_a_commit(tmp_path):
    path = tmp_path / "out.json"
    _run(path, [], SMALL[:1])
    again = store.Store(path, FACTS | {"commit": "def"})
    done = {r["peer"]: again.done(stats.key(r)) for r in again.rows}
    assert done == {"ours": False, "xla": False, "lax": True}


def test_another_card_is_refused(tmp_path):
    path = tmp_path / "out.json"
    _run(path, [], SMALL[:1], passes=("fwd",))
    with pytest.raises(ValueError, match="times of two cards don't mix"):
        store.Store(path, FACTS | {"card": "Other"})


def test_no_budget_measures_nothing(tmp_path):
    lines = []
    done, results = _run(tmp_path / "out.json", lines, budget=2.0)
    assert not done
    assert results.rows == []
    assert "run again to go on" in lines[-1]


def test_a_failure_is_a_row_and_retried_on_demand(tmp_path, monkeypatch):
    path, lines = tmp_path / "out.json", []

    def broken(*args):
        raise RuntimeError("out of everything")

    with monkeypatch.context() as patch:
        patch.setitem(peers._JAX_PEERS, "lax", broken)
        _, results = _run(path, lines, SMALL[:1])
    bad = [r for r in results.rows if r["status"] != "ok"]
    assert {(r["peer"], r["status"]) for r in bad} == {("lax", "error")}
    assert "out of everything" in bad[0]["reason"]
    assert store.Store(path, FACTS).done(stats.key(bad[0]))
    assert not store.Store(path, FACTS, retry=True).done(stats.key(bad[0]))


def test_a_wrong_result_is_not_a_time(tmp_path, monkeypatch):
    lines = []
    right = peers._JAX_PEERS["lax"]

    def off(layer, precision):
        forward = right(layer, precision)
        return lambda x, w, b: forward(x, w * 1.01, b)

    monkeypatch.setitem(peers._JAX_PEERS, "lax", off)
    _, results = _run(tmp_path / "out.json", lines, SMALL[:1], passes=("fwd",))
    row = next(r for r in results.rows if r["peer"] == "lax")
    assert row["status"] == "wrong"
    assert "wall_ms" not in row
    assert "y is off by 1.0e-02" in row["reason"]
    assert any("WRONG" in line for line in lines)


def test_what_can_not_run_is_blank(tmp_path):
    _, results = _run(
        tmp_path / "out.json", [], SMALL[1:], peers=("ours", "lax_transpose")
    )
    blank = [r for r in results.rows if r["status"] == "blank"]
    assert [r["reason"] for r in blank] == ["lax.conv_transpose has no groups"]


@pytest.mark.slow
@pytest.mark.torch
def test_torch_agrees_on_every_pass_and_layout(tmp_path):
    done, results = _run(
        tmp_path / "out.json",
        [],
        [SMALL[1], dataclasses.replace(SMALL[0], crop=((1, 2), (0, 1)), layout="NHWC")],
        peers=("ours", "torch"),
        passes=("fwd", "fwdb", "dx", "dw", "dwb", "step"),
    )
    assert done
    assert len(results.rows) == 2 * 2 * 6
    assert {r["status"] for r in results.rows} == {"ok"}


def test_plan_puts_the_telling_rows_first():
    options = runner.Options(
        passes=("fwd", "step"),
        precisions=("default", "highest"),
        peers=("ours", "torch", "lax", "flax", "lax_transpose"),
        both_layouts=True,
    )
    groups = runner.plan(shapes.load_suite("seeds"), options, gpu=True)
    assert [g.tier for g in groups] == sorted(g.tier for g in groups)
    first = groups[0]
    assert first.layer.id == "kb-l1-57-main"
    assert {(i.pass_name, i.precision, i.peer) for i in first.items} == {
        ("fwd", "default", "ours"),
        ("fwd", "default", "torch"),
        ("fwd", "highest", "torch"),
        ("fwd", "default", "lax"),
    }
    other = [g for g in groups if g.layer.layout == "NHWC"]
    assert {i.peer for g in other for i in g.items} == {"torch", "flax"}


def test_default_is_compared_with_strict_float32_too():
    options = runner.Options(precisions=("default",), peers=("ours", "torch", "lax"))
    (group, *_) = runner.plan(shapes.load_suite("seeds")[:1], options, gpu=True)
    strict = {i.peer for g in (group, *_) for i in g.items if i.precision == "highest"}
    assert strict == {"torch", "lax"}


def test_rows_are_forced_beside_ours(tmp_path):
    _, results = _run(
        tmp_path / "out.json", [], SMALL[:1], passes=("fwd",), rows=("xla:phases",)
    )
    row = next(r for r in results.rows if r["peer"] == "ours@xla:phases")
    assert (row["row"], row["status"]) == ("xla:phases", "ok")


def test_report_and_compare(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_plot", lambda data, path: False)
    path = tmp_path / "old.json"
    _run(path, [], SMALL)
    out = tmp_path / "REPORT.md"
    assert cli.main(["report", str(path), "--out", str(out)]) == 0
    text = out.read_text()
    assert "## Test CPU" in text
    assert "### Forward" in text
    assert "### Weight gradient" in text
    assert "geometric mean" in text

    data = store.load(path)
    for row in data["rows"]:
        row["wall_spread"] = 0.01  # whatever else this machine is doing
    path.write_text(json.dumps(data))
    for row in data["rows"]:
        row["wall_ms"] *= 10 if row["peer"] == "ours" and row["pass"] == "dx" else 1
    new = tmp_path / "new.json"
    new.write_text(json.dumps(data))
    capsys.readouterr()
    assert cli.main(["compare", str(path), str(path)]) == 0
    assert cli.main(["compare", str(path), str(new)]) == 1
    printed = capsys.readouterr().out
    assert "slower 10.000x" in printed
    assert "2 of ours slower" in printed


def test_newest_file_of_each_card(tmp_path):
    for name, card, date in (
        ("1", "A", "2026-01-01"),
        ("2", "A", "2026-02-01"),
        ("3", "B", "2025-01-01"),
    ):
        machine = FACTS | {"card": card, "date": f"{date} 00:00:00"}
        data = {"machine": machine, "runs": [machine], "rows": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    found = report.newest(sorted(tmp_path.glob("*.json")))
    assert [d["file"] for d in found] == ["2.json", "3.json"]


def test_report_shows_what_went_wrong():
    row = {
        "id": "kb-l1-57-main",
        "pass": "dx",
        "dtype": "fp32",
        "layout": "NCHW",
        "cut": "",
        "precision": "default",
        "peer": "ours",
        "status": "wrong",
        "reason": "dx is off by 1.0e+00, allowed 2e-03",
        "error": 1.0,
        "row": "cuda:simt",
    }
    machine = FACTS | {"platform": "gpu", "card": "Card"}
    text = report.render([({"machine": machine, "rows": [row]}, ["plots/x.png"])])
    assert "![plots/x.png](plots/x.png)" in text
    assert "Rows by commit" not in text
    assert "| kb-l1-57-main | fp32 | NCHW | cuda:simt | WRONG |" in text
    assert "dx is off by 1.0e+00" in text
    assert "### Seed problems, every peer, ms" in text
    rows = [row | {"commit": c, "pass": p} for c, p in (("a", "dx"), ("b", "dw"))]
    text = report.render([({"machine": machine, "rows": rows}, [])])
    assert "Rows by commit: 1 of a, 1 of b." in text


def test_reasons_of_slow_rows():
    row = {"id": "x", "pass": "dx", "dtype": "fp32", "layout": "NHWC"}
    first = report.why(row | {"row": "xla:strided"})
    assert "channels-last" in first
    assert report.why(row | {"row": "xla:strided", "layout": "NCHW"}) not in ("", first)
    assert report.why(row | {"row": "cuda:no_such_row"}) == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (1234.5, "1234"),
        (12.345, "12.3"),
        (0.012345, "0.0123"),
        (0.000012, "0"),
    ],
)
def test_numbers(value, expected):
    assert report.number(value) == expected


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import plots

    path = tmp_path / "out.json"
    _run(path, [], SMALL[:1])
    plots.draw(store.load(path), tmp_path / "p" / "x.png")
    assert (tmp_path / "p" / "x.png").stat().st_size > 1000


def test_missing_matplotlib_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not cli._plot({"machine": FACTS, "rows": []}, tmp_path / "x.png")
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_unknown_words_are_named(capsys):
    with pytest.raises(SystemExit):
        cli._parser().parse_args(["--passes", "fwd,sideways"])
    assert "'sideways' is none of fwd" in capsys.readouterr().err
    args = cli._parser().parse_args(["--passes", "all", "--precision", "all"])
    assert args.passes == ("fwd", "fwdb", "dx", "dw", "dwb", "step")
    assert args.precision == ("default", "high", "highest")
    assert cli._parser().parse_args(["--passes", "db"]).passes == ("dwb",)


@pytest.mark.slow
def test_the_command_line(tmp_path):
    suite = tmp_path / "suite.json"
    fields = {"id": "t", "n": 1, "cin": 2, "cout": 2, "h": 4, "w": 4, "kh": 2, "kw": 2}
    suite.write_text(json.dumps([fields]))
    out = tmp_path / "out.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--suite", str(suite)),
            *("--json", str(out), "--peers", "lax", "--passes", "fwd", "--reps", "3"),
        ],
        cwd=store.RESULTS.parents[1],
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "complete:" in done.stdout
    data = store.load(out)
    assert {r["peer"] for r in data["rows"]} == {"ours", "lax"}
    # The installed package was measured, with its native modules.
    if targets.module("cpu"):
        ours = next(r for r in data["rows"] if r["peer"] == "ours")
        assert ours["row"].startswith("cpu:")
    assert data["overheads"]["ours (eager)"]["waited"] > 0
    assert data["ceilings"]["copy_tb_s"] > 0
