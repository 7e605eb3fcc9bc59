"""The command line: what it prints, its JSON and its exit codes."""

import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import jax_transconv
from jax_transconv import cli, plan
from jax_transconv.ffi import targets


def run(capsys, *words):
    """Exit code, and standard output and error, of a command."""
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def as_json(capsys, *words):
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)


def test_info(capsys):
    code, out, _ = run(capsys, "info")
    assert code == 0
    _, data = as_json(capsys, "info")
    assert data["jax-transconv"] == jax_transconv.__version__
    assert f"jax-transconv: {jax_transconv.__version__}" in out
    for name in targets.PLATFORMS:
        built = targets.module(name) is not None
        assert data["modules"][name]["built"] == built
        assert (f"module {name}: not built: " in out) != built
    assert data["rows"]["xla:dilated"]
    assert {r for r, built in data["rows"].items() if built} >= set(
        targets.algorithm_ids()
    ) & {row.name for row in plan.CANDIDATES}


def test_info_without_modules_and_packages(capsys, monkeypatch):
    monkeypatch.setattr(targets, "_MODULES", {})
    monkeypatch.setattr(cli, "_OPTIONAL", ("no-such-distribution",))
    code, out, _ = run(capsys, "info")
    assert code == 0
    assert "no-such-distribution: not installed" in out
    assert "module cpu: not built: " in out
    assert "module cuda: not built: the CUDA compiler (nvcc 12.8 or newer)" in out
    missing = next(line for line in out.splitlines() if "rows not built: " in line)
    assert "cuda:sm90_rolling" in missing
    assert "cpu:tiled" in missing


def test_info_without_a_device():
    """On a machine whose platform is missing it still says what it knows."""
    done = subprocess.run(
        [sys.executable, "-m", "jax_transconv.cli", "info", "--json"],
        env={**os.environ, "JAX_PLATFORMS": "nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    data = json.loads(done.stdout)
    (device,) = data["devices"]
    assert device.startswith("none: ")
    assert "nowhere" in device
    assert data["environment"]["JAX_PLATFORMS"] == "nowhere"


def test_check(capsys, monkeypatch):
    """It passes, over every row that this machine has, and notices a wrong result."""
    monkeypatch.setattr(cli, "_PROBLEMS", cli._PROBLEMS[:1])
    code, data = as_json(capsys, "check")
    assert code == 0, data
    checked = {c["check"].split()[0] for c in data["checks"]}
    device = plan.device_of(None).platform
    native = {r for r in targets.algorithm_ids() if r.startswith(f"{device}:")}
    assert {"xla:dilated", "xla:filter"} <= checked
    assert bool(native) == bool(native & checked)


@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
def test_check_notices(name, capsys, monkeypatch):
    """One pass with one wrong element fails the command, which names it."""
    right = cli.conv_transpose2d

    def wrong(x, w, **arguments):
        @cli.jax.custom_vjp
        def call(x, w):
            y = right(x, w, **arguments)
            return y.at[0, 0, 0, 0].add(1) if name == "forward" else y

        def backward(saved, dy):
            dx, dw = cli.jax.vjp(lambda x, w: right(x, w, **arguments), *saved)[1](dy)
            dx = dx.at[0, 0, 0, 0].add(9) if name == "grad_input" else dx
            dw = dw.at[0, 0, 0, 0].add(9) if name == "grad_weight" else dw
            return dx, dw

        call.defvjp(lambda x, w: (call(x, w), (x, w)), backward)
        return call(x, w)

    monkeypatch.setattr(cli, "conv_transpose2d", wrong)
    monkeypatch.setattr(cli, "_PROBLEMS", cli._PROBLEMS[:1])
    monkeypatch.setattr(cli, "_BOUNDS", {"float32": cli._BOUNDS["float32"]})
    code, out, err = run(capsys, "check")
    assert (code, out) == (1, "")
    assert "\nFAILED xla:dilated float32" in err
    assert f"{name} is off by " in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_check(terminal, rich, capsys, monkeypatch):
    """A bar on a terminal that has rich, a line for each check otherwise."""
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    err = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    names = ["cpu:one [bold]", "cpu:two", "xla:three"]
    monkeypatch.setattr(cli, "_checks", lambda: ((n, lambda: None) for n in names))
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out.startswith("3 of 3 checks passed in ")
    lines = [f"{i} of 3: {name}" for i, name in enumerate(names, 1)]
    if terminal and rich:
        assert "\u2501" in err.getvalue()  # the bar
        assert "2/3" in err.getvalue()
        assert names[-1] in err.getvalue()
        assert lines[0] not in err.getvalue()
    else:
        assert err.getvalue().splitlines() == lines
    err.seek(0)
    err.truncate()
    assert cli.main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert err.getvalue() == ""


def test_explain(capsys):
    words = ["explain", "2,6,8,8", "6,4,3,3", "--stride", "2", "--padding", "1,0"]
    code, out, _ = run(capsys, *words, "--platform", "cpu")
    expected = jax_transconv.explain(
        *(cli.jax.ShapeDtypeStruct(s, "float32") for s in ((2, 6, 8, 8), (6, 4, 3, 3))),
        stride=2,
        padding=(1, 0),
        platform="cpu",
    )
    capsys.readouterr()
    assert code == 0
    assert out == f"{expected}\n"
    _, data = as_json(capsys, *words, "--platform", "cpu")
    assert data["y"] == list(expected.spec.y_shape)
    assert data["plans"]["forward"]["row"] == expected.plans["forward"].row


@pytest.mark.parametrize(
    ("platform", "backend", "reason"),
    [
        ("cpu", "cuda", "runs on cuda, the device is cpu"),
        ("tpu", "cpu", "runs on cpu, the device is tpu"),
        ("cpu", "cuda:simt", "runs on cuda, the device is cpu"),
    ],
)
def test_explain_of_a_backend_that_cannot_run(platform, backend, reason, capsys):
    words = ["explain", "2,6,8,8", "6,4,3,3", "--platform", platform]
    words += ["--backend", backend]
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    line = (
        f"explain: backend {backend!r} has no row for forward, grad_input, grad_weight "
        f"of this problem: {reason}"
    )
    assert err.splitlines()[0] == line
    assert err.splitlines()[1].startswith("Resolution: ")
    code, data = as_json(capsys, *words)
    assert code == 1
    assert data["error"] == line
    assert {p["row"] for p in data["plans"].values()} == {None}


def test_explain_of_a_backend_that_was_not_built(capsys, monkeypatch):
    monkeypatch.setattr(targets, "algorithm_ids", dict)
    plan._choose.cache_clear()
    words = ["explain", "2,6,8,8", "6,4,3,3", "--platform", "cpu", "--backend", "cpu"]
    code, _, err = run(capsys, *words)
    plan._choose.cache_clear()
    assert code == 1
    assert "of this problem: the native module for cpu was not built\n" in err


def test_a_platform_that_is_none(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "2,6,8,8", "6,4,3,3", "--platform", "bogus"])
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert "invalid choice: 'bogus'" in err
    assert all(name in err.splitlines()[-1] for name in plan.PLATFORMS)
    x, w = (
        cli.jax.ShapeDtypeStruct(s, "float32") for s in ((2, 6, 8, 8), (6, 4, 3, 3))
    )
    message = r"platform must be one of cpu, cuda, gpu, rocm, tpu, got 'bogus'"
    with pytest.raises(ValueError, match=message):
        jax_transconv.explain(x, w, platform="bogus")


@pytest.mark.parametrize(
    ("padding", "height"), [("SAME", 16), ("1", 15), ("0:-1,2:3", 18)]
)
def test_forms_of_padding(padding, height, capsys):
    words = ["--stride", "2", "--padding", padding]
    _, data = as_json(capsys, "explain", "2,6,8,8", "6,4,3,3", *words)
    assert data["y"][2] == height


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--padding", "1:x,2:3"), "'1:x,2:3' is not a crop lo:hi,lo:hi of integers"),
        (("--padding", "1,x"), "'1,x' is not an integer"),
        (("--dtype", "float8"), "invalid choice: 'float8'"),
    ],
)
def test_words_that_are_none(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "2,6,8,8", "6,4,3,3", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_bad_arguments_are_errors_with_a_way_out(capsys):
    code, out, err = run(capsys, "explain", "2,6,8,8", "5,4,3,3")
    assert (code, out) == (1, "")
    assert "x and weight must agree on the input channels" in err
    assert "Resolution: " in err
    code, data = as_json(capsys, "explain", "2,6,8,8", "5,4,3,3")
    assert code == 1
    assert "x and weight must agree" in data["error"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "no"])
    assert stopped.value.code == 2


@pytest.fixture
def in_directory(tmp_path, monkeypatch):
    """A directory of the user's own, with a program in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    program = """
import jax
def up(x, w):
    return jax.lax.conv_transpose(x, w, (2, 2), "SAME")
"""
    pathlib.Path("a_program_of_a_user.py").write_text(program)
    yield tmp_path
    sys.modules.pop("a_program_of_a_user", None)


def test_doctor(in_directory, capsys):
    words = ["doctor", "a_program_of_a_user:up", "2,4,5,3", "bfloat16:3,3,3,8"]
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "bfloat16" in err  # JAX's own word on operands that do not match
    words[-1] = "3,3,3,8"
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.startswith("1 transposed convolution on ")
    _, data = as_json(capsys, *words)
    (finding,) = data["findings"]
    assert finding["status"] == "taken"
    assert finding["shapes"] == [[2, 4, 5, 3], [3, 3, 3, 8], [2, 8, 10, 8]]
    assert set(finding["plans"]) == set(targets.PASSES)
    assert set(finding["gains"]) == set(targets.PASSES)
    assert finding["gains"]["grad_weight"]["seconds"] is None
    _, data = as_json(capsys, *words, "--measure")
    (finding,) = data["findings"]
    assert all(len(gain["seconds"]) == 2 for gain in finding["gains"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a_program_of_a_user",), "must be written module:function"),
        (("a_program_of_a_user:down",), "has no attribute 'down'"),
        (("no_such_module_at_all:f",), "No module named 'no_such_module_at_all'"),
        (("a_program_of_a_user:up", "2,x"), "got '2,x'"),
    ],
)
def test_doctor_refuses(words, message, in_directory, capsys):
    code, out, err = run(capsys, "doctor", *words)
    assert (code, out) == (1, "")
    assert message in err


def test_bench_says_where_the_benchmarks_are(in_directory, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, data = as_json(capsys, "bench")
    assert code == 1
    assert not data["available"]
    assert "python -m benchmarks" in data["reason"]


def test_bench_hands_over(capfd, monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert cli.main(["bench", "--", "--help"]) == 0
    assert "usage: " in capfd.readouterr().out


def test_the_definition_of_check_is_the_oracles(rng):
    import oracle

    from jax_transconv.spec import parse_geometry

    for arguments, x_shape, w_shape in cli._PROBLEMS:
        x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
        spec = parse_geometry(x, w, **arguments)
        g = spec.geometry
        want = oracle.forward(
            *(x, w, None),
            stride=g.stride,
            crop=g.crop,
            dilation=g.dilation,
            groups=g.groups,
        )
        np.testing.assert_allclose(cli._definition(spec, x, w), want, rtol=1e-12)
