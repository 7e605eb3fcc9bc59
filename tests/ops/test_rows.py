"""Every row of the table of candidates, forced, on every case of the named table.

A row either gives its reason, and then a call that insists on it raises with that
reason; or it runs, its name is in the lowered program, and its numbers are the
oracle's. A row that quietly became another fails.
"""

import dataclasses
import functools
import re

import cases
import conftest
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from rows import KERNEL_IS_STRIDE, RESULTS, case_for, problem, program, why_not

from jax_transconv import conv_transpose2d, plan
from jax_transconv.ffi import targets

PASSES = ("forward", "grad_input", "grad_weight")
PLATFORMS = ("cpu", "cuda")
_CUSTOM_CALL = re.compile(r"custom_call @(jax_transconv\.[\w.]+)\(")


def _grid():
    for platform in PLATFORMS:
        for row in plan.CANDIDATES:
            if row.backend not in ("xla", platform):
                continue
            for pass_name in row.passes:
                for case in cases.TABLE:
                    yield pytest.param(
                        *(platform, row, pass_name, case),
                        id=f"{platform}-{row.name}-{pass_name}-{case}",
                        marks=[pytest.mark.cuda] if platform == "cuda" else [],
                    )


def _compute_reference(case):
    data = case.data()
    return data, case.expected(data)


# Every row meets every case of the table, which are small; the wide ones are not.
_reference_of_table = functools.cache(_compute_reference)
_reference_of_others = functools.lru_cache(maxsize=len(cases.WIDE))(_compute_reference)
_TABLE = frozenset(cases.TABLE)


def _reference(case):
    return (_reference_of_table if case in _TABLE else _reference_of_others)(case)


@pytest.mark.parametrize(("platform", "row", "pass_name", "case"), list(_grid()))
def test_row(platform, row, pass_name, case):
    reason = _check_row(platform, row, pass_name, case)
    if reason is not None and "precision" in reason and case.dtype == "float32":
        reason = _check_row(platform, row, pass_name, case, precision="default")
        assert reason is None or "precision" not in reason


def _check_row(platform, row, pass_name, case, **keywords) -> str | None:
    """Runs the case, or has the row refuse it; returns the reason of a refusal."""
    device = jax.devices(platform)[0]
    spec = problem(case, platform, **keywords)
    data, want = _reference(case)
    run, names = program(case, pass_name, row.name, **keywords)
    arrays = dict(
        zip(("x", "w", "b", "dy"), cases.put(case, data, device), strict=True)
    )
    args = [arrays[name] for name in names]

    reason = why_not(row, pass_name, spec, platform)
    if reason is not None:
        assert isinstance(reason, str)
        assert reason.strip()
        declined = row.supports(pass_name, spec, plan.facts(platform))
        if row.backend == "xla" or targets.module(platform) is not None:
            assert declined == reason
        with pytest.raises(ValueError, match=re.escape(reason)) as caught:
            run(*args)
        assert "Resolution:" in str(caught.value)
        assert row.name in str(caught.value)
        return reason

    assert row.supports(pass_name, spec, plan.facts(platform)) is None
    text = run.lower(*args).as_text()
    calls = _CUSTOM_CALL.findall(text)
    if row.backend == "xla":
        assert not calls, "an xla row with a custom call in it"
    else:
        assert calls == [f"jax_transconv.{pass_name}.v1"]
        algorithm = targets.algorithm_ids()[row.name]
        assert re.search(rf"algorithm = {algorithm} : i32", text), text

    results = jax.tree.leaves(run(*args))
    assert [{d.platform for d in r.devices()} for r in results] == [
        {"gpu" if platform == "cuda" else platform}
    ] * len(results)
    wanted = [n for n in RESULTS[pass_name] if n in want]
    for name, value in zip(wanted, results, strict=True):
        assert value.dtype == jnp.dtype(case.dtype)
        value = case.from_layout(value) if value.ndim == 4 and name != "dw" else value
        oracle.assert_close(value, want[name], case.dtype, what=name, **keywords)
    return None


def _native_rows(pass_name=None, marks=(pytest.mark.cuda,)):
    """All of them, or those that have a pass; `marks` are those of the CUDA ones."""
    return [
        pytest.param(row, id=row.name, marks=marks if row.backend == "cuda" else ())
        for row in plan.CANDIDATES
        if row.backend != "xla" and (pass_name is None or pass_name in row.passes)
    ]


def _dtypes(row):
    """Those that a row multiplies: most tensor-core rows leave float64 to others."""
    if row.name in ("cuda:sm90_lines", "cuda:sm90_lines_wgrad"):
        return ("float32",)
    if row.name == "cuda:mma_f64":
        return ("float64",)
    vector_units = ("cuda:simt", "cuda:direct", "cuda:direct_wgrad")
    if row.backend != "cuda" or row.name in vector_units:
        return cases.DTYPES
    return tuple(d for d in cases.DTYPES if d != "float64")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("row", _native_rows(marks=()))
def test_every_dtype_of_a_row_is_tried(row, dtype, capsys):
    """In the grid or the wide cases, in every pass; no device is needed to ask."""
    if targets.module(row.backend) is None:
        pytest.skip(f"the native module for {row.backend} was not built")
    facts = plan.DeviceFacts(row.backend, (9, 0), 132)
    problems = [c for c in cases.TABLE if c.dtype == dtype]
    problems += [c.replace(dtype=dtype) for c in cases.WIDE]
    for pass_name in row.passes:
        taken = [
            case
            for case in problems
            if row.supports(
                pass_name, problem(case, row.backend, precision="default"), facts
            )
            is None
        ]
        assert bool(taken) == (dtype in _dtypes(row)), pass_name


@pytest.mark.parametrize(
    "platform", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
def test_native_rows_are_here(platform):
    """The grid above proves nothing about a module that is not there."""
    if targets.module(platform) is None:
        if platform == "cuda" and "cuda" not in conftest.required():
            pytest.skip("the CUDA module was not built")
        pytest.fail(f"the native module for {platform} was not built")
    rows = {row.name for row in plan.CANDIDATES if row.backend == platform}
    assert rows
    built = {n for n in targets.algorithm_ids() if n.startswith(f"{platform}:")}
    assert rows == built


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("pass_name", PASSES)
@pytest.mark.parametrize("case", cases.TABLE, ids=str)
def test_some_row_of_plain_jax_takes_every_case(platform, pass_name, case, capsys):
    """The fallback has no hole, whatever the platform: no device is needed to ask."""
    spec = problem(case, platform)
    chosen = plan.choose(pass_name, spec, plan.DeviceFacts(platform), "xla")
    assert chosen.row is not None, chosen
    assert chosen.row.startswith("xla:")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("row", plan.CANDIDATES, ids=lambda row: row.name)
def test_rows_keep_the_dtype_without_x64(row, dtype):
    """JAX's default configuration, in which nothing is 64 bits wide."""
    if dtype == "float64":
        pytest.skip("there is no float64 without x64")
    case = cases.Case(
        "no_x64", 2, 4, 4, 3, 4, 2, 3, (2, 1), (1, 0), dtype=dtype, groups=4
    )
    with jax.enable_x64(False):
        spec = problem(case, "cpu")
        for pass_name in row.passes:
            if why_not(row, pass_name, spec, "cpu") is not None:
                continue
            data, want = _reference(case)
            run, names = program(case, pass_name, row.name)
            arrays = cases.put(case, data, jax.devices("cpu")[0])
            arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
            results = jax.tree.leaves(run(*(arrays[n] for n in names)))
            for name, value in zip(RESULTS[pass_name], results, strict=True):
                assert value.dtype == jnp.dtype(dtype)
                oracle.assert_close(value, want[name], dtype, what=name)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        ("float32", "default"),
        ("float32", "highest"),
        ("float64", "default"),
        ("bfloat16", "default"),
        ("float16", "default"),
    ],
)
@pytest.mark.parametrize("row", _native_rows())
def test_wide_rows(row, dtype, precision):
    """Strips, shares and their seams; what is not written shows as NaN."""
    if precision == "highest" and not row.name.endswith("rolling"):
        pytest.skip("has no precisions, or other tests for them")
    if dtype not in _dtypes(row):
        pytest.skip(f"has no {dtype}")
    device = jax.devices(row.backend)[0]
    ran = set()
    for case in cases.WIDE:
        case = case.replace(dtype=dtype)
        if row.backend == "cpu" and case.h > 50:  # a GPU's blocks have that many rows
            case = case.replace(h=13)
        spec = problem(case, row.backend, precision=precision)
        taken = [
            pass_name
            for pass_name in row.passes
            if why_not(row, pass_name, spec, row.backend) is None
        ]
        if not taken:
            continue
        data, want = _reference(case)
        arrays = cases.put(case, data, device)
        arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
        for pass_name in taken:
            run, names = program(case, pass_name, row.name, precision=precision)
            args = [arrays[n] for n in names]
            compiled = run.lower(*args).compile()
            jax.device_put(np.full(2**21, np.nan), device).block_until_ready()
            for name, value in zip(
                RESULTS[pass_name], jax.tree.leaves(compiled(*args)), strict=True
            ):
                oracle.assert_close(
                    value, want[name], dtype, precision=precision, what=name
                )
            ran.add(pass_name)
    if row.name != "cpu:depthwise":
        assert ran == set(row.passes)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("case", cases.PARTS, ids=str)
def test_parts_of_tiles(case, dtype):
    """Two runs agree to the bit, as well."""
    case = case.replace(dtype=dtype)
    data, want = _reference(case)
    arrays = cases.put(case, data, jax.devices("cpu")[0])
    arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
    for pass_name in PASSES:
        run, names = program(case, pass_name, "cpu:tiled")
        args = [arrays[n] for n in names]
        results, again = jax.tree.leaves(run(*args)), jax.tree.leaves(run(*args))
        wanted = [n for n in RESULTS[pass_name] if n in want]
        for name, value, same in zip(wanted, results, again, strict=True):
            np.testing.assert_array_equal(value, same)
            value = (
                case.from_layout(value) if value.ndim == 4 and name != "dw" else value
            )
            oracle.assert_close(value, want[name], dtype, what=name)


# Binades, or zeros. Steps of 18 are just outside of what float16 holds to 11 bits.
_MAGNITUDES = (0, -40, 30, None, -60, 45, -20, -38, -20)


@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("row", _native_rows())
def test_magnitudes_that_change_down_an_image(row, precision):
    """A scale that follows the data: no stretch of rows may lose its digits."""
    if "forward" not in row.passes:
        pytest.skip("has no forward pass")
    # What shares a scale, and loses digits where the magnitudes meet, is a tile of up
    # to 16 rows and its halo in one kernel, a row or two in the others.
    band = 48 if row.name in ("cuda:sm90_tile", "cuda:mma_tile") else 16
    height = band * len(_MAGNITUDES)
    case = cases.Case("scales", 2, 16, 24, height, 200, 3, 3, padding=(1, 1))
    scales = [0.0 if m is None else 2.0**m for m in _MAGNITUDES]
    data = case.data()
    x = data.x * np.repeat(scales, band)[:, None].astype(np.float32)
    data = dataclasses.replace(data, x=x, bias=np.zeros_like(data.bias))
    spec = problem(case, row.backend, precision=precision)
    if why_not(row, "forward", spec, row.backend) is not None:
        pytest.skip("made for other problems")
    run, names = program(case, "forward", row.name, precision=precision)
    arrays = cases.put(case, data, jax.devices(row.backend)[0])
    arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
    got = oracle.as_float64(run(*(arrays[n] for n in names)))
    want = oracle.forward(data.x, data.weight, **case.geometry)
    for i, magnitude in enumerate(_MAGNITUDES):
        inner = np.s_[:, :, band * i + band // 2 - 2 : band * i + band // 2 + 2]
        error = np.linalg.norm(got[inner] - want[inner])
        assert error <= 1e-3 * np.linalg.norm(want[inner]), magnitude


@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("row", _native_rows("grad_weight"))
def test_a_value_far_beyond_the_others(row, precision):
    """No scale that all others suggest may let it overflow.

    Ours alone: a library behind XLA may choose a transform (Winograd's, Fourier's) that
    spreads the rounding of the largest value over the others.
    """
    platform = row.backend
    # More values than a sample takes, and 64 channels, which packed cells are for.
    case = cases.Case("outlier", 2, 64, 24, 64, 72, 3, 3, padding=(1, 1))
    spec = problem(case, platform, precision=precision)
    if (reason := why_not(row, "grad_weight", spec, platform)) is not None:
        pytest.skip(reason)
    data = case.data()
    x, dy = data.x.copy(), data.dy.copy()
    x[0, 0, 0, 5] = 2.0**14
    dy[-1, -1, 3, 6] = -(2.0**12)
    data = dataclasses.replace(data, x=x, dy=dy)
    run, names = program(case, "grad_weight", row.name, precision=precision)
    arrays = cases.put(case, data, jax.devices(platform)[0])
    arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
    dw, _ = run(*(arrays[n] for n in names))
    want = case.expected(data)["dw"]
    oracle.assert_close(dw, want, case.dtype, precision=precision, what="dw")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "row", [r for r in plan.CANDIDATES if "sm90_wgrad" in r.name], ids=lambda r: r.name
)
def test_long_sums_of_one_sign(row):
    """Tensor cores cut off what they add: a bias that grows with what is added up."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0.5, 1.5, (4, 32, 256, 512)).astype(np.float32)
    dy = rng.uniform(0.5, 1.5, (4, 24, 258, 512)).astype(np.float32)
    w = np.zeros((32, 24, 3, 1), np.float32)

    @jax.jit
    def grad_weight(x, w, dy):
        keywords = {"precision": "highest", "backend": row.name, "autodiff": "both"}
        f = functools.partial(conv_transpose2d, **keywords)
        return jax.linear_transpose(lambda w: f(x, w), w)(dy)[0]

    arrays = jax.device_put((x, w, dy), jax.devices("cuda")[0])
    got = oracle.as_float64(grad_weight(*arrays))
    columns = np.moveaxis(x, 1, 0).reshape(32, -1).astype(np.float64)
    for k in range(3):
        rows = np.moveaxis(dy[:, :, k : k + 256], 1, 0).reshape(24, -1)
        want = columns @ rows.T.astype(np.float64)
        error = np.linalg.norm(got[:, :, k, 0] - want) / np.linalg.norm(want)
        assert error <= 1.5e-6, k


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["default", "high", "highest"])
@pytest.mark.parametrize(
    "row",
    [row for row in plan.CANDIDATES if "float32" in _dtypes(row)],
    ids=lambda row: row.name,
)
def test_precision_classes_on_cuda(row, precision):
    """Each word of `precision` is at least as good as its class, on every row."""
    case = cases.Case("precision", 4, 64, 48, 14, 13, 3, 4, (2, 2), (1, 1))
    if "rolling" in row.name or "gemm" in row.name:  # what it is for
        case = case_for(row)
    data, want = _reference(case)
    spec = problem(case, "cuda", precision=precision)
    arrays = cases.put(case, data, jax.devices("cuda")[0])
    arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
    ran = 0
    for pass_name in row.passes:
        reason = why_not(row, pass_name, spec, "cuda")
        if reason is not None:
            ran += "precision" in reason
            continue
        run, names = program(case, pass_name, row.name, precision=precision)
        results = jax.tree.leaves(run(*(arrays[n] for n in names)))
        for name, value in zip(RESULTS[pass_name], results, strict=True):
            oracle.assert_close(
                value, want[name], case.dtype, precision=precision, what=name
            )
        ran += 1
    if row.backend == "cuda":
        assert ran == len(row.passes)


@pytest.mark.parametrize(
    "platform", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
@pytest.mark.parametrize("row", plan.CANDIDATES, ids=lambda row: row.name)
@pytest.mark.parametrize(
    "kind", ["dense", "depthwise", "grouped", "wide", "wide_tf32", "blocks"]
)
def test_rows_repeat_their_bits(platform, row, kind):
    """The same bits, ten times over: no order of addition is left open."""
    channels = {"dense": (24, 20, 1), "depthwise": (24, 24, 24), "grouped": (24, 12, 4)}
    keywords = {}
    if kind.startswith("wide"):
        case = cases.WIDE[0]
        if kind == "wide_tf32":
            keywords = {"precision": "default"}
    elif kind == "blocks":
        case = KERNEL_IS_STRIDE
        keywords = {"precision": "default"}
    else:
        cin, cout, groups = channels[kind]
        case = cases.Case(
            f"bits-{kind}", 3, cin, cout, 17, 15, 3, 4, (2, 1), (1, 2), groups=groups
        )
    data, _ = _reference(case)
    spec = problem(case, platform, **keywords)
    arrays = cases.put(case, data, jax.devices(platform)[0])
    arrays = dict(zip(("x", "w", "b", "dy"), arrays, strict=True))
    for pass_name in row.passes:
        if why_not(row, pass_name, spec, platform) is not None:
            continue
        if row.backend == "xla" and platform == "cuda":
            continue  # cuDNN's choice is XLA's to make repeatable
        run, names = program(case, pass_name, row.name, **keywords)
        args = [arrays[n] for n in names]
        first = [np.asarray(r).view(np.uint32) for r in jax.tree.leaves(run(*args))]
        for _ in range(9):
            again = [np.asarray(r).view(np.uint32) for r in jax.tree.leaves(run(*args))]
            for a, b in zip(first, again, strict=True):
                np.testing.assert_array_equal(a, b)
