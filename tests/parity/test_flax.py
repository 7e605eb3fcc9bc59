"""Against `flax.linen.ConvTranspose`: the function in place of the layer.

With `transpose_kernel=True` a flax kernel (kh, kw, out, in) is ours with its axes
permuted; without it the kernel is not flipped and its last two axes are (in, out).
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_transconv import conv_transpose2d

pytestmark = pytest.mark.flax

CIN, COUT = 3, 5


def run_flax(rng, transpose_kernel, kernel, stride, padding, dilation):
    from flax import linen

    layer = linen.ConvTranspose(
        COUT,
        kernel,
        stride,
        padding,
        kernel_dilation=dilation,
        transpose_kernel=transpose_kernel,
        precision="highest",
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )
    channels = (COUT, CIN) if transpose_kernel else (CIN, COUT)
    params = {
        "kernel": jnp.asarray(rng.standard_normal((*kernel, *channels))),
        "bias": jnp.asarray(rng.standard_normal(COUT)),
    }
    x = jnp.asarray(rng.standard_normal((2, 5, 4, CIN)))
    return x, params, lambda params, x: layer.apply({"params": params}, x)


def weight_of(kernel, transpose_kernel):
    """The permutation, and the flip where flax makes none."""
    if transpose_kernel:
        return kernel.transpose(3, 2, 0, 1)
    return kernel[::-1, ::-1].transpose(2, 3, 0, 1)


@pytest.mark.parametrize("transpose_kernel", [True, False])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2), (5, 4)])
@pytest.mark.parametrize("kernel", [(3, 3), (4, 2), (1, 5)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_values_and_gradients(transpose_kernel, padding, stride, kernel, dilation, rng):
    x, params, flax = run_flax(rng, transpose_kernel, kernel, stride, padding, dilation)

    def ours(params, x):
        return conv_transpose2d(
            x,
            weight_of(params["kernel"], transpose_kernel),
            params["bias"],
            stride=stride,
            padding=padding,
            dilation=dilation,
            layout="NHWC",
        )

    def passes(f):
        def loss(params, x):
            y = f(params, x)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    (_, y), got = passes(ours)(params, x)
    (_, want), expected = passes(flax)(params, x)
    oracle.assert_same(y, want, "float64", 100)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        oracle.assert_same(a, b, "float64", 1000)


def test_explicit_padding(rng):
    """Flax's pairs pad the stretched input: crop = dilation * (k - 1) - pad."""
    pairs, kernel, stride = [(2, 1), (0, 3)], (3, 4), (2, 3)
    x, params, flax = run_flax(rng, True, kernel, stride, pairs, (1, 1))
    crop = [(k - 1 - a, k - 1 - b) for k, (a, b) in zip(kernel, pairs, strict=True)]
    y = conv_transpose2d(
        x,
        weight_of(params["kernel"], True),
        params["bias"],
        stride=stride,
        padding=crop,
        layout="NHWC",
    )
    oracle.assert_same(y, flax(params, x), "float64", 100)


def test_the_kernel_without_a_flip_is_another(rng):
    """The flip is no detail: without it the shape is right and the numbers are not."""
    x, params, flax = run_flax(rng, False, (3, 3), (2, 2), "SAME", (1, 1))
    unflipped = params["kernel"].transpose(2, 3, 0, 1)
    y = conv_transpose2d(
        x, unflipped, params["bias"], stride=2, padding="SAME", layout="NHWC"
    )
    want = flax(params, x)
    assert y.shape == want.shape
    assert not np.allclose(y, want, atol=0.1)
