"""The drop-in layers against Haiku's own: parameters, values and gradients."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

pytestmark = pytest.mark.haiku

IN, OUT = 3, 5


def build(ours, rank, x, arguments):
    """Initial parameters of a layer, and the function of them and of x that it is."""
    import haiku

    from jax_transconv.nn import haiku as mine

    make = getattr(mine if ours else haiku, f"Conv{rank}DTranspose")

    @haiku.without_apply_rng
    @haiku.transform
    def model(x):
        return make(OUT, **arguments)(x)

    return jax.jit(model.init)(jax.random.key(7), x), model.apply


def image(rng, rank, arguments=None, dtype="float64"):
    x = jnp.asarray(rng.standard_normal((*(2, 8, 7)[: 1 + rank], IN)), dtype)
    channels_first = (arguments or {}).get("data_format") in ("NCW", "NCHW")
    return jnp.moveaxis(x, -1, 1) if channels_first else x


def passes(layer, params, x):
    """The result and the gradients of the parameters and of x."""

    @jax.jit
    def run(params, x):
        y, pull = jax.vjp(layer, params, x)
        dy = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return y, *pull(dy)

    return run(params, x)


def same_parameters(params, expected):
    """Their tree, names and all, and every bit."""
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


GRID = [
    *(
        (rank, {"kernel_shape": 4, "stride": stride, "padding": p, "data_format": f})
        for rank, format_ in ((1, "W"), (2, "HW"))
        for stride in (2, 3)
        for p in ("SAME", "VALID")
        for f in ((f"N{format_}C", f"NC{format_}")[stride % 2 :][:1])
    ),
    (1, {"kernel_shape": 3, "padding": ((2, 1),), "with_bias": False}),
    (1, {"kernel_shape": 5, "stride": 2, "output_shape": 15}),
    (2, {"kernel_shape": (3, 2), "stride": (2, 3), "padding": ((1, 2), (0, 3))}),
    (2, {"kernel_shape": (1, 5), "stride": (3, 1), "data_format": "NCHW"}),
    (2, {"kernel_shape": 5, "stride": 2, "output_shape": (15, 14)}),
    (2, {"kernel_shape": (1, 2), "stride": 3, "output_shape": (24, 20)}),
    (
        2,
        {
            "kernel_shape": 3,
            "stride": 2,
            "output_shape": (17, 16),
            "padding": "VALID",
            "data_format": "NCHW",
        },
    ),
    (2, {"kernel_shape": 3, "data_format": "channels_first", "name": "up"}),
    (2, {"kernel_shape": 3, "w_init": jnp.ones, "b_init": jnp.ones}),
    (
        2,
        {
            "kernel_shape": (3, 2),
            "mask": np.tri(3, 2)[..., None, None] * np.ones((5, 3)),
        },
    ),
]


@pytest.mark.parametrize(("rank", "arguments"), GRID)
def test_parameters_and_values(rank, arguments, rng):
    x = image(rng, rank, arguments)
    if arguments.get("data_format") == "channels_first":
        x = jnp.moveaxis(x, -1, 1)
    params, ours = build(True, rank, x, arguments)
    expected, theirs = build(False, rank, x, arguments)
    same_parameters(params, expected)
    got, want = (jax.jit(f)(params, x) for f in (ours, theirs))
    assert got.shape == want.shape
    oracle.assert_same(got, want, "float64", 400)
    assert "conv_transpose2d_forward" in str(jax.make_jaxpr(ours)(params, x))


@pytest.mark.parametrize(("rank", "arguments"), GRID[:-5:5])
def test_gradients(rank, arguments, rng):
    x = image(rng, rank, arguments)
    params, ours = build(True, rank, x, arguments)
    _, theirs = build(False, rank, x, arguments)
    got, want = (passes(f, params, x) for f in (ours, theirs))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        oracle.assert_same(a, b, "float64", 400)


def test_transformations(rng):
    arguments = {"kernel_shape": 3, "stride": 2, "data_format": "NCHW"}
    x = image(rng, 2, arguments)
    params, ours = build(True, 2, x, arguments)
    _, theirs = build(False, 2, x, arguments)
    for f in (
        lambda layer: jax.jvp(layer, (params, x), (params, x))[1],
        lambda layer: jax.vmap(layer, (None, 0))(params, x),
        lambda layer: jax.jit(layer)(params, x),
        lambda layer: layer(params, x[0]),
    ):
        oracle.assert_same(f(ours), f(theirs), "float64", 30)


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_dtypes(dtype, rng):
    x = image(rng, 2, dtype="float32").astype(dtype)
    with jax.numpy_dtype_promotion("standard"):  # for complex initial values
        params, ours = build(True, 2, x, {"kernel_shape": 3})
        expected, theirs = build(False, 2, x, {"kernel_shape": 3})
    same_parameters(params, expected)
    y, want = ours(params, x), theirs(params, x)
    assert y.dtype == want.dtype
    if dtype == "complex64":  # not one of ours
        np.testing.assert_array_equal(y, want)
    else:
        oracle.assert_same(y, want, dtype, 30)


def test_general_layer(rng):
    """With one axis ours, with three Haiku's own code."""
    import haiku

    from jax_transconv.nn import haiku as mine

    for rank in (1, 3):
        x = jnp.asarray(rng.standard_normal((2, *(4, 3, 5)[:rank], IN)), jnp.float32)
        results = []
        for module in (mine, haiku):
            model = haiku.transform(
                lambda x, module=module, rank=rank: module.ConvNDTranspose(
                    rank, OUT, 3, 2
                )(x)
            )
            params = model.init(jax.random.key(0), x)
            results.append(model.apply(params, None, x))
        oracle.assert_same(*results, "float32", 90)


@pytest.mark.parametrize("name", ["Conv1DTranspose", "Conv2DTranspose"])
def test_arguments_are_haikus(name):
    """Nothing is missing, renamed or reordered, and no default differs."""
    import haiku

    from jax_transconv.nn import haiku as mine

    ours, theirs = (inspect.signature(getattr(m, name)) for m in (mine, haiku))
    assert list(ours.parameters.items()) == list(theirs.parameters.items())
    ours, theirs = (inspect.signature(getattr(m, name).__call__) for m in (mine, haiku))
    assert list(ours.parameters) == list(theirs.parameters)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        (
            (4, IN),
            {},
            "Conv2DTranspose: inputs must have rank 4, or 3 without a batch axis, got "
            "rank 2 with shape (4, 3).\n"
            "Resolution: add or fold batch axes with reshape.",
        ),
        (
            (1, 4, 4, IN),
            {"output_shape": 9, "stride": 2},
            "Conv2DTranspose: output_shape 9 with padding 'SAME' needs an input of 5 "
            "positions, got 4.\n"
            "Resolution: pass the output_shape that belongs to the input.",
        ),
        (
            (1, 4, 4, IN),
            {"mask": np.ones((3, 3))},
            "Conv2DTranspose: mask must have the shape of the kernel, got mask (3, 3) "
            "and kernel (3, 3, 5, 3).\nResolution: make the mask with that shape.",
        ),
    ],
)
def test_messages(shape, arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}(\n-|$)"):
        build(True, 2, jnp.ones(shape), {"kernel_shape": 3, **arguments})
