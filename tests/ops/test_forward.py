"""The forward pass as users call it: arguments, layouts, dtypes, random problems."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given

from jax_transconv import conv_transpose2d


def run(case, data, **changes):
    x, w, b, _ = cases.put(case, data)
    y = conv_transpose2d(x, w, b, **{**case.kwargs, **changes})
    assert y.dtype == jnp.dtype(case.dtype)
    return case.from_layout(y)


@pytest.mark.parametrize("case", cases.TABLE, ids=str)
def test_table(case):
    data = case.data()
    y = run(case, data)
    oracle.assert_close(y, case.expected(data)["y"], case.dtype)


@given(cases.legal_cases("float64", torch_form=False))
def test_any_crop_float64(case):
    data = case.data()
    oracle.assert_close(run(case, data), case.expected(data)["y"], case.dtype)


@given(cases.legal_cases("float32", torch_form=False))
def test_any_crop_float32_native(case):
    """Without the rows of plain JAX wherever a native one exists for this device."""
    data = case.data()
    native = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    y = run(case, data, backend=native)
    oracle.assert_close(y, case.expected(data)["y"], case.dtype)


@given(cases.legal_cases("bfloat16", torch_form=False))
def test_any_crop_bfloat16(case):
    data = case.data()
    oracle.assert_close(run(case, data), case.expected(data)["y"], case.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("groups", [1, 32])
def test_16_bit_rounds_once(dtype, groups):
    """Long sums stay within 2 ulp of float32 rounded once, bias included."""
    case = cases.Case(
        f"round-{dtype}-{groups}",
        *(1, 256, 32, 4, 5, 3, 3, (2, 2), (1, 1)),
        dtype=dtype,
        groups=groups,
    )
    data = case.data()
    want = case.expected(data)["y"]
    y = run(case, data)
    distance = oracle.ulp_distance(y, oracle.round_to(want.value, dtype))
    resolvable = np.abs(want.value) > 2.0**-8 * want.scale
    assert resolvable.sum() > 100
    assert distance[resolvable].max() <= 2


def test_layouts_hold_the_same_numbers():
    case = cases.Case("layouts", 2, 5, 7, 4, 6, 3, 2, (2, 3), (1, 0), (1, 2))
    data = case.data()
    y = run(case, data)
    nhwc = case.replace(layout="NHWC")
    oracle.assert_same(run(nhwc, data), y, case.dtype, case.reduction)


def test_nhwc_makes_no_transpose():
    """Channels-last is a layout of the kernels, not two transposes around them."""
    case = cases.Case("nhwc", 2, 16, 24, 9, 8, 3, 4, (2, 2), (1, 1), layout="NHWC")
    args = cases.put(case, case.data())[:3]
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    f = functools.partial(conv_transpose2d, **case.kwargs, backend=native)
    text = jax.jit(f).lower(*args).as_text()
    assert "jax_transconv.forward.v1" in text
    assert "stablehlo.transpose" not in text


def test_numpy_operands():
    case = cases.TABLE[0]
    data = case.data()
    y = conv_transpose2d(data.x, data.weight, data.bias, **case.kwargs)
    assert isinstance(y, jax.Array)
    oracle.assert_close(y, case.expected(data)["y"], case.dtype)


def test_strided_numpy_operands():
    """Views that are not contiguous, and read-only ones."""
    case = cases.Case("views", 2, 3, 4, 5, 6, 3, 3, (2, 1))
    data = case.data()
    x = np.ascontiguousarray(data.x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    w = np.repeat(data.weight, 2, axis=2)[:, :, ::2]
    assert not x.flags.c_contiguous
    assert not w.flags.c_contiguous
    w.setflags(write=False)
    y = conv_transpose2d(x, w, data.bias, **case.kwargs)
    oracle.assert_close(y, case.expected(data)["y"], case.dtype)


def test_gaps_hold_exactly_the_bias():
    """Where the stride skips positions, and where a crop appends some."""
    x = np.ones((1, 1, 2, 2), np.float32)
    w = np.full((1, 1, 1, 1), 7.0, np.float32)
    b = np.array([3.0], np.float32)
    y = conv_transpose2d(x, w, b, stride=3, padding=((-2, -1), (0, -3)))
    want = np.full((7, 7), 3.0)
    want[2:6:3, 0:4:3] = 10.0
    np.testing.assert_array_equal(y[0, 0], want)


def test_definition_by_hand():
    """1, 2 scattered by the kernel 1, 10, 100 at stride 2: overlaps add up."""
    x = np.array([1.0, 2.0], np.float32).reshape(1, 1, 1, 2)
    w = np.array([1.0, 10.0, 100.0], np.float32).reshape(1, 1, 1, 3)
    y = conv_transpose2d(x, w, stride=(1, 2))
    np.testing.assert_array_equal(y[0, 0, 0], [1.0, 10.0, 102.0, 20.0, 200.0])


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_one_special_input_stays_in_its_patch(special, layout):
    case = cases.Case(
        "special", 1, 3, 4, 5, 6, 3, 2, (2, 2), (1, 0), bias=False, layout=layout
    )
    data = case.data()
    data.x[0, 1, 2, 3] = special
    y = run(case, data)
    touched = np.zeros(case.out_shape[2:], bool)
    touched[2 * 2 - 1 : 2 * 2 - 1 + 3, 2 * 3 : 2 * 3 + 2] = True
    assert np.isfinite(y[:, :, ~touched]).all()
    assert not np.isfinite(y[:, :, touched]).any()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_infinite_weight(stride, groups, layout):
    """A tap that reaches outside of x is no product at all: 0 * inf has no place."""
    case = cases.Case(
        "infinite",
        *(1, 4, 4, 4, 5, 3, 3, (stride, stride), (1, 0)),
        groups=groups,
        layout=layout,
    )
    data = case.data()
    data.weight[:] = np.inf
    y, want = run(case, data), case.expected(data)["y"]
    if jax.default_backend() == "gpu":
        # Tensor cores multiply the padding: nan may stand for inf, never a number.
        np.testing.assert_array_equal(np.isfinite(y), np.isfinite(want.value))
    else:
        oracle.assert_close(y, want, case.dtype)


def test_float16_overflows_to_signed_infinity():
    x = np.array([[[[60000.0, -60000.0]]]], np.float16)
    w = np.full((1, 1, 1, 1), 2.0, np.float16)
    np.testing.assert_array_equal(conv_transpose2d(x, w)[0, 0, 0], [np.inf, -np.inf])


@pytest.mark.parametrize(
    "value", [None, "highest", "HIGHEST", jax.lax.Precision.HIGHEST]
)
def test_spellings_of_precision(value):
    case = cases.Case("precision", 2, 3, 4, 5, 6, 3, 3, (2, 2))
    data = case.data()
    y = run(case, data, precision=value)
    # On a CPU, float32 is float32 whatever the word.
    gpu = jax.default_backend() == "gpu"
    bound = "default" if value is None and gpu else "highest"
    oracle.assert_close(y, case.expected(data)["y"], case.dtype, precision=bound)


@pytest.mark.parametrize(
    "value",
    [
        *jax.lax.Precision,
        *("default", "high", "highest", "tensorfloat32", "bfloat16_3x", "float32"),
        *jax.lax.DotAlgorithmPreset,
    ],
    ids=str,
)
def test_every_word_of_jax_for_precision_is_taken(value):
    x = jax.ShapeDtypeStruct((1, 2, 3, 3), jnp.dtype("float32"))
    w = jax.ShapeDtypeStruct((2, 3, 2, 2), jnp.dtype("float32"))
    out = jax.eval_shape(lambda x, w: conv_transpose2d(x, w, precision=value), x, w)
    assert out.shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    "word", ["tensorfloat32", "float32", "high", "BF16_BF16_F32_X3"]
)
def test_default_matmul_precision_is_heard(word):
    """Without an argument, JAX's own setting decides."""
    x = jax.ShapeDtypeStruct((1, 2, 3, 3), jnp.dtype("float32"))
    w = jax.ShapeDtypeStruct((2, 3, 2, 2), jnp.dtype("float32"))

    def geometry(**kwargs):
        jaxpr = jax.make_jaxpr(
            lambda x, w: conv_transpose2d(x, w, autodiff="both", **kwargs)
        )(x, w)
        (eqn,) = jaxpr.eqns
        return eqn.params["geometry"]

    with jax.default_matmul_precision(word):
        assert geometry() == geometry(precision=word)
    assert geometry(precision="default") != geometry(precision="highest")
