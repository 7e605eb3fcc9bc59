"""conv_transpose1d against torch: values, gradients, layouts, errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_transconv import conv_transpose1d

# (length, kernel, stride, padding, output_padding, dilation, groups)
PROBLEMS = [
    (7, 3, 1, 0, 0, 1, 1),
    (6, 4, 2, 1, 0, 1, 2),
    (5, 5, 3, 2, 2, 1, 4),
    (4, 3, 2, 1, 2, 3, 1),
    (1, 16, 8, 4, 0, 1, 1),
    (9, 1, 4, 0, 3, 1, 1),
]


def draw(rng, problem):
    length, kernel, *_, groups = problem
    x = rng.standard_normal((2, 4, length))
    w = rng.standard_normal((4, 8 // groups, kernel))
    return x, w, rng.standard_normal(8)


@pytest.mark.torch
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("layout", ["NCL", "NLC"])
def test_is_torchs(problem, layout, rng):
    import torch

    x, w, b = draw(rng, problem)
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    arguments = dict(zip(names, problem[2:], strict=True))
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    want = torch.nn.functional.conv_transpose1d(*tensors, **arguments)
    (want.sin().sum()).backward()

    def ours(x, w, b):
        x = x.swapaxes(1, 2) if layout == "NLC" else x
        y = conv_transpose1d(x, w, b, layout=layout, **arguments)
        return y.swapaxes(1, 2) if layout == "NLC" else y

    operands = tuple(map(jnp.asarray, (x, w, b)))
    y = ours(*operands)
    assert y.shape == tuple(want.shape)
    oracle.assert_same(y, want, "float64", 100)
    gradients = jax.grad(lambda *a: jnp.sin(ours(*a)).sum(), (0, 1, 2))(*operands)
    for got, tensor in zip(gradients, tensors, strict=True):
        oracle.assert_same(got, tensor.grad, "float64", 1000)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_words_are_jaxs(padding, rng):
    x, w, _ = draw(rng, PROBLEMS[0])
    got = conv_transpose1d(x, w, stride=2, padding=padding)
    kernel = w.transpose(2, 1, 0)
    want = jax.lax.conv_transpose(
        *(x, kernel, (2,), padding),
        dimension_numbers=("NCH", "HIO", "NCH"),
        transpose_kernel=True,
    )
    oracle.assert_same(got, want, "float64", 100)


def test_forms_of_arguments(rng):
    """One value in a sequence, a signed crop, a length, and no batch axis."""
    x, w, b = draw(rng, PROBLEMS[1])
    w = w.repeat(2, axis=1)  # one group
    want = conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1)
    for arguments in (
        {"stride": [2], "padding": (1,), "output_padding": (1,), "dilation": (1,)},
        {"stride": 2, "padding": ((1, 0),)},
        {"stride": 2, "padding": 1, "output_size": want.shape[-1]},
        {"stride": 2, "padding": 1, "output_size": [want.shape[-1]]},
    ):
        got = conv_transpose1d(x, w, b, **arguments)
        np.testing.assert_array_equal(got, want)
    alone = conv_transpose1d(x[0], w, b, stride=2, padding=1, output_padding=1)
    oracle.assert_same(alone, want[0], "float64", 20)
    last = conv_transpose1d(
        x[0].T, w, b, stride=2, padding=1, output_padding=1, layout="NLC"
    )
    oracle.assert_same(last.T, want[0], "float64", 20)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"layout": "NCHW"},
            ValueError,
            "conv_transpose2d: layout must be one of NCL, NLC in 1-D, got 'NCHW'.\n"
            "Resolution: layout is the memory order of x and of the result.",
        ),
        (
            {"x": np.ones((1, 2, 3, 4))},
            ValueError,
            "conv_transpose2d: x must have rank 3 (NCL) or 2 (unbatched) in 1-D, got "
            "rank 4 with shape (1, 2, 3, 4).\n"
            "Resolution: add or fold batch axes with reshape.",
        ),
        (
            {"weight": np.ones((2, 3))},
            ValueError,
            "conv_transpose2d: weight must have rank 3 (in_channels, out_channels // "
            "groups, k) in 1-D, got rank 2 with shape (2, 3).\n"
            "Resolution: reshape the weight.",
        ),
        (
            {"stride": (1, 2)},
            TypeError,
            "conv_transpose2d: stride must be one value in 1-D, got 2: (1, 2).\n"
            "Resolution: give stride as an int.",
        ),
        (
            {"padding": (1, 2)},
            TypeError,
            "conv_transpose2d: padding must be one value in 1-D, got 2: (1, 2).\n"
            "Resolution: give padding as an int.",
        ),
    ],
)
def test_messages(arguments, error, message):
    call = {"x": np.ones((1, 2, 3)), "weight": np.ones((2, 3, 2))} | arguments
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        conv_transpose1d(**call)


@pytest.mark.parametrize(
    "arguments",
    [{"stride": 0}, {"dilation": 1.5}, {"output_padding": 1}, {"output_size": 99}],
)
def test_the_rest_is_checked_as_in_2d(arguments):
    (name,) = arguments
    with pytest.raises((ValueError, TypeError), match=rf"{name} .*\nResolution"):
        conv_transpose1d(np.ones((1, 2, 3)), np.ones((2, 3, 2)), **arguments)
