"""The table of rows and the choice: order, reasons, switches. No GPU is needed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_transconv
from jax_transconv import conv_transpose2d, plan
from jax_transconv.ffi import targets

PASSES = ("forward", "grad_input", "grad_weight")
HOPPER = plan.DeviceFacts("cuda", (9, 0), 132, "NVIDIA H100")
DEVICES = [plan.DeviceFacts("cpu"), HOPPER, plan.DeviceFacts("tpu")]
F32 = jnp.dtype("float32")


def spec_of(x=(2, 8, 5, 6), weight=(8, 4, 3, 3), dtype=F32, **kwargs):
    return jax_transconv.explain(
        jax.ShapeDtypeStruct(x, dtype),
        jax.ShapeDtypeStruct(weight, dtype),
        platform="cpu",
        **kwargs,
    ).spec


SPECS = {
    "dense": {"stride": 2, "padding": 1},
    "unit_stride": {},
    "wide_stride": {"stride": (9, 10)},
    "groups": {"groups": 2, "stride": 2},
    "depthwise": {"weight": (8, 1, 4, 4), "groups": 8, "stride": 2},
    "dilated_strided": {"stride": 2, "dilation": 3},
    "many_taps": {"weight": (8, 4, 9, 9), "stride": 3},
    "no_example": {"x": (0, 8, 5, 6)},
    "nhwc": {"x": (2, 5, 6, 8), "layout": "NHWC"},
    "negative": {"padding": ((-2, 1), (0, -4))},
    "bfloat16": {"dtype": jnp.dtype("bfloat16"), "stride": 2},
    "float64": {"dtype": jnp.dtype("float64"), "stride": 2},
}


@pytest.fixture(params=SPECS, ids=str)
def spec(request):
    return spec_of(**SPECS[request.param])


@pytest.fixture
def as_if_built(monkeypatch):
    """All native rows, whatever was built here."""
    rows = {
        row.name: i for i, row in enumerate(plan.CANDIDATES) if row.backend != "xla"
    }
    monkeypatch.setattr(targets, "algorithm_ids", lambda: rows)
    monkeypatch.setattr(targets, "unsupported", lambda row, pass_name, spec: None)
    monkeypatch.setattr(targets, "architectures", tuple)
    plan._choose.cache_clear()
    yield
    plan._choose.cache_clear()


def test_names():
    names = [row.name for row in plan.CANDIDATES]
    assert len(set(names)) == len(names)
    for row in plan.CANDIDATES:
        assert re.fullmatch(r"(xla|cpu|cuda):[a-z0-9_]+", row.name)
        assert row.backend == row.name.split(":")[0]
        assert row.passes
        assert set(row.passes) <= set(PASSES)


@pytest.mark.parametrize("pass_name", PASSES)
def test_the_last_row_takes_everything(pass_name):
    """The general row comes last, is plain JAX and never declines a problem."""
    rows = [row for row in plan.CANDIDATES if pass_name in row.passes]
    assert rows[-1].backend == "xla"
    for name, keywords in SPECS.items():
        if name != "no_example":
            reason = rows[-1].supports(pass_name, spec_of(**keywords), DEVICES[0])
            assert reason is None, (name, reason)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_row_says_why(spec, device, pass_name, as_if_built):
    """One verdict a row, in the table's order: chosen once, reasons for the rest."""
    chosen = plan.choose(pass_name, spec, device)
    rows = [row.name for row in plan.CANDIDATES if pass_name in row.passes]
    assert [name for name, _ in chosen.verdicts] == rows
    assert [name for name, reason in chosen.verdicts if reason == "chosen"] == [
        chosen.row
    ]
    for _, reason in chosen.verdicts:
        assert isinstance(reason, str)
        assert reason.strip()
    assert chosen.row.split(":")[0] in ("xla", device.platform)
    text = str(chosen)
    for name, reason in chosen.verdicts:
        assert re.search(rf"{re.escape(name)} +{re.escape(reason)}", text)


@pytest.mark.parametrize("pass_name", PASSES)
def test_native_rows_are_only_for_their_platform(spec, pass_name, as_if_built):
    for device in DEVICES:
        for name, reason in plan.choose(pass_name, spec, device).verdicts:
            backend = name.split(":")[0]
            if backend not in ("xla", device.platform):
                assert backend in reason
                assert device.platform in reason


@pytest.mark.parametrize("pass_name", PASSES)
def test_a_module_that_was_not_built_is_named(spec, pass_name, monkeypatch):
    monkeypatch.setattr(targets, "algorithm_ids", dict)
    plan._choose.cache_clear()
    chosen = plan.choose(pass_name, spec, plan.DeviceFacts("cpu"))
    plan._choose.cache_clear()
    assert chosen.row.startswith("xla:")
    for name, reason in chosen.verdicts:
        if name.startswith("cpu:"):
            assert "not built" in reason


@pytest.mark.parametrize("backend", ["xla", "cpu", "cuda"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_a_backend_is_kept_to(spec, backend, pass_name, as_if_built):
    for device in DEVICES:
        chosen = plan.choose(pass_name, spec, device, backend)
        if chosen.row is not None:
            assert chosen.row.split(":")[0] == backend
        if backend == "xla":
            assert chosen.row is not None


@pytest.mark.parametrize("row", plan.CANDIDATES, ids=lambda row: row.name)
def test_a_named_row_is_taken_or_nothing_is(spec, row, as_if_built):
    """Never another row of the same backend for a pass that the named one has."""
    for device in DEVICES:
        for pass_name in PASSES:
            chosen = plan.choose(pass_name, spec, device, row.name)
            if pass_name in row.passes:
                assert chosen.row in (row.name, None)
            elif chosen.row is not None:
                assert chosen.row.split(":")[0] == row.backend


def test_disabled_rows(spec, monkeypatch):
    """TRANSCONV_DISABLE takes rows out, and the explanation says so."""
    device = plan.DeviceFacts("cpu")
    seen = []
    for _ in range(len(plan.CANDIDATES)):
        row = plan.choose("forward", spec, device).row
        if row is None:
            break
        seen.append(row)
        monkeypatch.setenv("TRANSCONV_DISABLE", ",".join(seen))
        verdicts = dict(plan.choose("forward", spec, device).verdicts)
        assert "TRANSCONV_DISABLE" in verdicts[row]
    assert len(seen) == len(set(seen))
    assert plan.choose("forward", spec, device).row is None


def test_disabling_is_seen_by_calls(monkeypatch):
    """A row switched off is not used by a call, even where it was used before."""
    x, w = np.ones((2, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)

    def text(stride):
        f = jax.jit(lambda x, w: conv_transpose2d(x, w, stride=stride, backend="cpu"))
        return f.trace(x, w).lower(lowering_platforms=("cpu",)).as_text()

    assert "jax_transconv.forward.v1" in text(2)
    monkeypatch.setenv("TRANSCONV_DISABLE", "cpu:tiled,cpu:depthwise")
    with pytest.raises(ValueError, match="TRANSCONV_DISABLE"):
        text(2)


def test_nothing_left_is_an_error(monkeypatch):
    names = ",".join(row.name for row in plan.CANDIDATES)
    monkeypatch.setenv("TRANSCONV_DISABLE", names)
    x, w = np.ones((1, 2, 3, 4), np.float32), np.ones((2, 3, 2, 5), np.float32)
    with pytest.raises(
        ValueError, match=r"(?s)conv_transpose2d: .*Resolution: "
    ) as caught:
        jax.jit(conv_transpose2d).lower(x, w)
    for row in plan.CANDIDATES:
        if "forward" in row.passes:
            assert row.name in str(caught.value)


def test_log(monkeypatch, capsys):
    """TRANSCONV_LOG=plan prints each plan once."""
    spec = spec_of(x=(3, 8, 7, 9), stride=2)
    monkeypatch.setenv("TRANSCONV_LOG", "plan")
    capsys.readouterr()
    for _ in range(3):
        chosen = plan.choose("forward", spec, plan.DeviceFacts("cpu"))
    err = capsys.readouterr().err
    assert err.count("forward: ") == 1
    assert chosen.row in err
    monkeypatch.delenv("TRANSCONV_LOG")
    plan.choose("forward", spec_of(x=(3, 8, 7, 8)), plan.DeviceFacts("cpu"))
    assert capsys.readouterr().err == ""


def test_available_backends(as_if_built):
    assert plan.available_backends("cpu") == ("xla", "cpu")
    assert plan.available_backends("cuda") == ("xla", "cuda")
    assert plan.available_backends("tpu") == ("xla",)


def test_available_backends_here():
    """What was really built: the CPU module always is."""
    assert set(plan.available_backends("cpu")) == {"xla", "cpu"}


@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize(
    ("cin", "cout", "kernel", "row"),
    [
        (32, 32, (3, 3), "cuda:sm90_wgrad_rolling"),
        (32, 20, (5, 2), "cuda:sm90_wgrad_rolling"),
        (32, 64, (3, 3), "cuda:sm90_wgrad_rolling"),
        (24, 128, (3, 5), "cuda:sm90_wgrad_rolling"),
        (32, 64, (2, 2), "cuda:sm90_wgrad_rolling"),
        (64, 64, (3, 3), "cuda:sm90_wgrad_rolling"),
        (64, 64, (3, 7), "cuda:sm90_wgrad_cells"),
    ],
)
def test_weight_gradient_as_accurate_as_float32(
    cin, cout, kernel, row, precision, as_if_built
):
    """Rows of three products roll where their blocks hold most of the channels."""
    spec = spec_of((8, cin, 512, 1024), (cin, cout, *kernel), precision=precision)
    chosen = plan.choose("grad_weight", spec, HOPPER)
    assert chosen.row == row
    reason = dict(chosen.verdicts)["cuda:sm90_wgrad_rolling"]
    assert reason == "chosen" or re.search(r"over the images \d+ times", reason)


# --- explain --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["structs", "numpy", "jax"])
def test_explain_returns_and_prints(kind, capsys):
    make = {
        "structs": jax.ShapeDtypeStruct,
        "numpy": np.zeros,
        "jax": jnp.zeros,
    }[kind]
    x, w, b = make((2, 4, 5, 6), F32), make((4, 3, 3, 2), F32), make((3,), F32)
    explanation = jax_transconv.explain(x, w, b, stride=(2, 1), padding=1)
    printed = capsys.readouterr().out
    assert printed.strip() == str(explanation).strip()
    assert set(explanation.plans) == set(PASSES)
    for row in plan.CANDIDATES:
        assert row.name in printed
    for text in ("(2, 4, 5, 6)", "(4, 3, 3, 2)", "(2, 3, 9, 5)", "float32", "(2, 1)"):
        assert text in printed


def test_explain_unbatched(capsys):
    explanation = jax_transconv.explain(
        jax.ShapeDtypeStruct((4, 5, 6), F32), jax.ShapeDtypeStruct((4, 3, 3, 2), F32)
    )
    assert explanation.spec.batch == 1


@pytest.mark.parametrize("backend", ["xla", "cpu"])
def test_explain_tells_what_runs(backend, spec):
    """The row that `explain` names is the one in the lowered program."""
    arrays = (
        jax.ShapeDtypeStruct(spec.x_shape, jnp.dtype(spec.dtype)),
        jax.ShapeDtypeStruct(spec.w_shape, jnp.dtype(spec.dtype)),
    )
    keywords = {
        "stride": spec.geometry.stride,
        "dilation": spec.geometry.dilation,
        "padding": spec.geometry.crop,
        "groups": spec.geometry.groups,
        "layout": spec.geometry.layout,
        "backend": backend,
    }
    explanation = jax_transconv.explain(*arrays, platform="cpu", **keywords)
    row = explanation.plans["forward"].row
    traced = jax.jit(lambda x, w: conv_transpose2d(x, w, **keywords)).trace(*arrays)
    if row is None:
        with pytest.raises(ValueError, match="has no row for forward"):
            traced.lower(lowering_platforms=("cpu",))
        return
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert ("jax_transconv.forward.v1" in text) == row.startswith("cpu:")
    if row.startswith("cpu:"):
        assert f"algorithm = {targets.algorithm_ids()[row]} : i32" in text


def test_explain_runs_nothing(monkeypatch):
    """Sizes of which no array could exist are explained all the same."""
    explanation = jax_transconv.explain(
        jax.ShapeDtypeStruct((2**14, 1024, 512, 512), F32),
        jax.ShapeDtypeStruct((1024, 1024, 3, 3), F32),
        stride=2,
    )
    assert explanation.plans["forward"].row is not None


def test_one_program_for_two_platforms():
    """Each platform gets its own row when a program is lowered for both."""
    x, w = (
        jax.ShapeDtypeStruct((2, 4, 5, 6), F32),
        jax.ShapeDtypeStruct((4, 3, 3, 2), F32),
    )
    traced = jax.jit(lambda x, w: conv_transpose2d(x, w, stride=2)).trace(x, w)
    text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert "stablehlo.case" in text or "platform_index" in text
    for platform in ("cpu", "cuda"):
        alone = traced.lower(lowering_platforms=(platform,)).as_text()
        row = plan.choose(
            *("forward", spec_of((2, 4, 5, 6), (4, 3, 3, 2), stride=2)),
            plan.facts(platform),
        ).row
        assert ("jax_transconv.forward.v1" in alone) == (not row.startswith("xla:"))
