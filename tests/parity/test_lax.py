"""Against JAX itself: `lax.conv_transpose`, and the transpose of an ordinary conv.

These references are XLA's, so shapes on which XLA:CPU is known to be wrong (negative
low padding; one channel against more than 32768) stay out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transconv import conv_transpose2d

_DIMS = ("NHWC", "HWIO", "NHWC")


def draw_arrays(size, kernel, cin=3, cout=4):
    rng = np.random.default_rng(list(size) + list(kernel))
    x = rng.standard_normal((2, *size, cin))
    w = rng.standard_normal((cin, cout, *kernel))
    return jnp.asarray(x), jnp.asarray(w)


def lax_transpose(x, w, stride, padding, dilation, **kwargs):
    """`lax.conv_transpose` as "gradient of conv": (H, W, out, in), flipped."""
    return jax.lax.conv_transpose(
        *(x, w.transpose(2, 3, 1, 0), stride, padding),
        rhs_dilation=dilation,
        dimension_numbers=_DIMS,
        transpose_kernel=True,
        **kwargs,
    )


AXIS = st.tuples(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)
)


@given(AXIS, AXIS, st.sampled_from(["SAME", "VALID"]))
def test_string_padding_is_jax(h, w, padding):
    """Size and values of "SAME" and "VALID", kernels smaller than the stride too."""
    size, kernel, stride, dilation = zip(h, w, strict=True)
    x, weight = draw_arrays(size, kernel)
    want = lax_transpose(x, weight, stride, padding, dilation)
    y = conv_transpose2d(
        x, weight, stride=stride, padding=padding, dilation=dilation, layout="NHWC"
    )
    assert y.shape == want.shape
    oracle.assert_same(y, want, "float64", 100)
    nchw = conv_transpose2d(
        x.transpose(0, 3, 1, 2),
        weight,
        stride=stride,
        padding=padding,
        dilation=dilation,
    )
    oracle.assert_same(nchw.transpose(0, 2, 3, 1), y, "float64", 100)


@given(AXIS, AXIS, st.data())
def test_crop_is_jax_pairs(h, w, data):
    """lax pads the stretched input: its (a, b) is our crop (e - 1 - a, e - 1 - b)."""
    size, kernel, stride, dilation = zip(h, w, strict=True)
    x, weight = draw_arrays(size, kernel)
    extents = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    pairs = [tuple(data.draw(st.integers(0, e + 1)) for _ in range(2)) for e in extents]
    crop = [(e - 1 - a, e - 1 - b) for e, (a, b) in zip(extents, pairs, strict=True)]
    sizes = [oracle.out_extent(*axis, c) for axis, c in zip((h, w), crop, strict=True)]
    if min(sizes) < 1:
        return
    want = lax_transpose(x, weight, stride, pairs, dilation)
    y = conv_transpose2d(
        x, weight, stride=stride, padding=crop, dilation=dilation, layout="NHWC"
    )
    oracle.assert_same(y, want, "float64", 100)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_it_is_the_transpose_of_an_ordinary_convolution(groups, stride, dilation, rng):
    """<conv(a), b> = <a, convT(b)>, with one weight and one meaning of padding."""
    padding = (1, 2)
    weight = jnp.asarray(rng.standard_normal((6, 6 // groups, 3, 4)))
    image = jax.ShapeDtypeStruct((2, 6, 13, 14), jnp.dtype("float64"))

    def convolution(a):
        return jax.lax.conv_general_dilated(
            *(a, weight, stride),
            padding=[(p, p) for p in padding],
            rhs_dilation=dilation,
            feature_group_count=groups,
        )

    cotangent = jax.eval_shape(convolution, image)
    b = jnp.asarray(rng.standard_normal(cotangent.shape))
    (want,) = jax.linear_transpose(convolution, image)(b)
    y = conv_transpose2d(
        b,
        weight,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        # What floor division of the sizes lost: the image's own size.
        output_padding=[
            n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, m, s, p, d, k in zip(
                (13, 14),
                cotangent.shape[2:],
                stride,
                padding,
                dilation,
                (3, 4),
                strict=True,
            )
        ],
    )
    assert y.shape == image.shape
    oracle.assert_same(y, want, "float64", 100)
    a = jnp.asarray(rng.standard_normal(image.shape))
    np.testing.assert_allclose(jnp.vdot(convolution(a), b), jnp.vdot(a, y), rtol=1e-10)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gradients_of_string_padding(padding, rng):
    x, weight = draw_arrays((5, 4), (3, 2))

    def theirs(x, w):
        return jnp.sum(jnp.sin(lax_transpose(x, w, (2, 3), padding, (1, 2))))

    def ours(x, w):
        y = conv_transpose2d(
            x, w, stride=(2, 3), padding=padding, dilation=(1, 2), layout="NHWC"
        )
        return jnp.sum(jnp.sin(y))

    for a, b in zip(
        jax.grad(ours, (0, 1))(x, weight),
        jax.grad(theirs, (0, 1))(x, weight),
        strict=True,
    ):
        oracle.assert_same(a, b, "float64", 400)


def test_consistent_padding():
    """lax's `use_consistent_padding` is our non-negative crop."""
    x, weight = draw_arrays((5, 4), (3, 4))
    pairs = [(1, 0), (2, 1)]
    want = lax_transpose(x, weight, (2, 1), pairs, (1, 1), use_consistent_padding=True)
    y = conv_transpose2d(x, weight, stride=(2, 1), padding=pairs, layout="NHWC")
    oracle.assert_same(y, want, "float64", 100)
