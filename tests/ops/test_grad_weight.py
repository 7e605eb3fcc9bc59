"""The gradients of weight and bias, by `jax.grad` as users take them."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given

from jax_transconv import conv_transpose2d


def run(case, data, **changes):
    x, w, b, dy = cases.put(case, data)
    keywords = {**case.kwargs, **changes}

    @jax.jit
    def gradient(w, b, dy):
        if b is None:
            return jax.vjp(lambda w: conv_transpose2d(x, w, **keywords), w)[1](dy)
        return jax.vjp(lambda w, b: conv_transpose2d(x, w, b, **keywords), w, b)[1](dy)

    grads = gradient(w, b, dy)
    for g, of in zip(grads, (w, b), strict=False):
        assert g.dtype == jnp.dtype(case.dtype)
        assert g.shape == of.shape
    return dict(zip(("dw", "db"), grads, strict=False))


def check(case, got, want):
    assert set(got) == ({"dw", "db"} if case.bias else {"dw"})
    for name, value in got.items():
        oracle.assert_close(value, want[name], case.dtype, what=name)


@pytest.mark.parametrize("case", cases.TABLE, ids=str)
def test_table(case):
    data = case.data()
    check(case, run(case, data), case.expected(data))


@given(cases.legal_cases("float64", torch_form=False))
def test_any_crop_float64(case):
    data = case.data()
    check(case, run(case, data), case.expected(data))


@given(cases.legal_cases("float32", torch_form=False))
def test_any_crop_float32_native(case):
    data = case.data()
    native = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    check(case, run(case, data, backend=native), case.expected(data))


@pytest.mark.parametrize("wanted", ["w", "b"])
@pytest.mark.parametrize("autodiff", ["reverse", "both"])
def test_one_of_the_two(wanted, autodiff):
    case = cases.Case("one", 2, 3, 4, 5, 6, 3, 2, (2, 1), (1, 0))
    data = case.data()
    x, w, b, dy = cases.put(case, data)

    def loss(w, b):
        y = conv_transpose2d(x, w, b, **case.kwargs, autodiff=autodiff)
        return jnp.vdot(y, dy)

    got = jax.grad(loss, argnums="wb".index(wanted))(w, b)
    oracle.assert_close(got, case.expected(data)[f"d{wanted}"], case.dtype)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_long_16_bit_sums(dtype, layout):
    """4096 ones sum to 4096 in dw and db: float16 and bfloat16 sums would stall."""
    x = jnp.ones((4, 1, 32, 32) if layout == "NCHW" else (4, 32, 32, 1), dtype)
    w, b = jnp.ones((1, 2, 1, 1), dtype), jnp.ones((2,), dtype)
    dw, db = jax.grad(
        lambda w, b: conv_transpose2d(x, w, b, layout=layout).astype("float32").sum(),
        argnums=(0, 1),
    )(w, b)
    np.testing.assert_array_equal(dw.astype("float32"), np.full((1, 2, 1, 1), 4096.0))
    np.testing.assert_array_equal(db.astype("float32"), np.full(2, 4096.0))


def test_taps_that_see_nothing_have_gradient_zero():
    """A tap whose products are all cropped away, to the bit."""
    x = np.ones((1, 1, 2, 2), np.float32)
    w = np.ones((1, 1, 3, 3), np.float32)
    dw = jax.grad(lambda w: conv_transpose2d(x, w, padding=((0, 2), (2, 0))).sum())(w)
    np.testing.assert_array_equal(dw[0, 0], [[0, 2, 4], [0, 1, 2], [0, 0, 0]])
