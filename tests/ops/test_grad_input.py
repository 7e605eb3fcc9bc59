"""The gradient of x, by `jax.grad` as users take it."""

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
    f = jax.jit(
        lambda x, dy: jax.vjp(
            lambda x: conv_transpose2d(x, w, b, **{**case.kwargs, **changes}), x
        )[1](dy)[0]
    )
    dx = f(x, dy)
    assert dx.dtype == jnp.dtype(case.dtype)
    assert dx.shape == x.shape
    return case.from_layout(dx)


@pytest.mark.parametrize("case", cases.TABLE, ids=str)
def test_table(case):
    data = case.data()
    dx = run(case, data)
    oracle.assert_close(dx, case.expected(data)["dx"], case.dtype)


@given(cases.legal_cases("float64", torch_form=False))
def test_any_crop_float64(case):
    data = case.data()
    oracle.assert_close(run(case, data), case.expected(data)["dx"], case.dtype)


@given(cases.legal_cases("float32", torch_form=False))
def test_any_crop_float32_native(case):
    data = case.data()
    native = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    dx = run(case, data, backend=native)
    oracle.assert_close(dx, case.expected(data)["dx"], case.dtype)


def test_no_gradient_from_what_is_cropped():
    """An input whose whole patch is cut off has gradient zero, to the bit."""
    x = np.ones((1, 1, 4, 4), np.float32)
    w = np.ones((1, 1, 2, 2), np.float32)
    dx = jax.grad(lambda x: conv_transpose2d(x, w, padding=((2, 0), (0, 2))).sum())(x)
    want = np.full((4, 4), 4.0)
    want[0] = 0.0
    want[1] = 2.0
    want[:, 3] = 0.0
    want[:, 2] /= 2
    np.testing.assert_array_equal(dx[0, 0], want)


def test_it_is_the_ordinary_convolution():
    """The gradient of x is `lax.conv` of the cotangent with the same weight."""
    case = cases.Case("conv", 2, 3, 4, 5, 6, 3, 3, (2, 2), (1, 1), dtype="float64")
    data = case.data()
    want = jax.lax.conv_general_dilated(
        data.dy, data.weight, window_strides=(2, 2), padding=[(1, 1), (1, 1)]
    )
    oracle.assert_same(run(case, data), want, case.dtype, case.reduction)
