"""The drop-in layers against Equinox's own: parameters, values and gradients."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

pytestmark = pytest.mark.equinox

IN, OUT = 4, 6
KEY = 3


def build(ours, rank, arguments, dtype=jnp.float64):
    """A layer, and the function of its arrays and of x that it is."""
    import equinox

    from jax_transconv.nn import equinox as mine

    module = mine if ours else equinox.nn
    make = getattr(module, f"ConvTranspose{rank}d")
    layer = make(IN, OUT, **arguments, dtype=dtype, key=jax.random.key(KEY))
    arrays, static = equinox.partition(layer, equinox.is_array)
    tree = jax.tree.structure(arrays)
    return jax.tree.leaves(arrays), lambda leaves, x: equinox.combine(
        jax.tree.unflatten(tree, leaves), static
    )(x)


def image(rng, rank, dtype="float64"):
    return jnp.asarray(rng.standard_normal((IN, *(8, 7)[:rank])), dtype)


def passes(layer, leaves, x):
    """The result and the gradients of the parameters and of x."""

    @jax.jit
    def run(leaves, x):
        y, pull = jax.vjp(layer, leaves, x)
        dy = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return y, *pull(dy)

    return run(leaves, x)


GRID = [
    (1, {"kernel_size": 3}),
    (1, {"kernel_size": 5, "stride": 3, "padding": 1, "output_padding": 2}),
    (1, {"kernel_size": (4,), "stride": 2, "padding": "same", "groups": 2}),
    (1, {"kernel_size": 3, "padding": "SAME", "padding_mode": "CIRCULAR"}),
    (2, {"kernel_size": 3}),
    (2, {"kernel_size": 4, "stride": 2, "padding": 1}),
    (2, {"kernel_size": (4, 2), "stride": (3, 2), "padding": (2, 0)}),
    (2, {"kernel_size": (3, 5), "padding": ((2, 1), (0, 3)), "dilation": (2, 1)}),
    (2, {"kernel_size": (1, 5), "stride": 3, "output_padding": (2, 1)}),
    (2, {"kernel_size": 3, "stride": 2, "padding": "VALID", "output_padding": 1}),
    (2, {"kernel_size": (3, 4), "stride": 2, "groups": 2, "dilation": 2}),
    (2, {"kernel_size": 3, "groups": 2, "use_bias": False}),
    *(
        (2, {"kernel_size": kernel, "stride": stride, "padding": padding, **rest})
        for kernel, stride in (((5, 2), (2, 3)), ((1, 2), (4, 2)))
        for padding in ("SAME", "SAME_LOWER")
        for rest in ({"dilation": (2, 3)}, {"padding_mode": "CIRCULAR"})
    ),
    (2, {"kernel_size": 4, "stride": 2, "padding": "SAME", "output_padding": 1}),
]


@pytest.mark.parametrize(("rank", "arguments"), GRID, ids=str)
def test_parameters_and_values(rank, arguments, rng):
    x = image(rng, rank)
    leaves, ours = build(True, rank, arguments)
    expected, theirs = build(False, rank, arguments)
    for a, b in zip(leaves, expected, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    got, want = (jax.jit(f)(leaves, x) for f in (ours, theirs))
    assert got.shape == want.shape
    oracle.assert_same(got, want, "float64", 400)
    assert "conv_transpose2d_forward" in str(jax.make_jaxpr(ours)(leaves, x))


@pytest.mark.parametrize(("rank", "arguments"), GRID[1::6], ids=str)
def test_gradients(rank, arguments, rng):
    x = image(rng, rank)
    leaves, ours = build(True, rank, arguments)
    _, theirs = build(False, rank, arguments)
    got, want = (passes(f, leaves, x) for f in (ours, theirs))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        oracle.assert_same(a, b, "float64", 400)


@pytest.mark.parametrize("rank", [1, 2])
def test_forward_mode_and_vmap(rank, rng):
    x = image(rng, rank)
    images = jnp.stack([x, -x, 2 * x])
    arguments = {"kernel_size": 3, "stride": 2, "groups": 2}
    leaves, ours = build(True, rank, arguments)
    _, theirs = build(False, rank, arguments)
    for f in (
        lambda layer: jax.jvp(layer, (leaves, x), (leaves, x))[1],
        lambda layer: jax.vmap(layer, (None, 0))(leaves, images),
        lambda layer: jax.jit(layer)(leaves, x),
    ):
        oracle.assert_same(f(ours), f(theirs), "float64", 30)


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_dtypes(dtype, rng):
    x = image(rng, 2, "float32").astype(dtype)
    # Without a bias: Equinox rounds once before it adds one and once after.
    arguments = {"kernel_size": 3, "use_bias": False}
    leaves, ours = build(True, 2, arguments, dtype)
    expected, theirs = build(False, 2, arguments, dtype)
    np.testing.assert_array_equal(leaves[0], expected[0], strict=True)
    y, want = ours(leaves, x), theirs(leaves, x)
    assert y.dtype == want.dtype
    if dtype == "complex64":  # not one of ours
        np.testing.assert_array_equal(y, want)
    else:
        oracle.assert_same(y, want, dtype, 40)


def test_general_layer(rng):
    """With one axis ours, with three Equinox's own code."""
    import equinox

    from jax_transconv.nn.equinox import ConvTranspose

    for rank in (1, 3):
        x = jnp.asarray(rng.standard_normal((IN, *(4, 3, 5)[:rank])), jnp.float32)
        ours, theirs = (
            make(rank, IN, OUT, 3, 2, key=jax.random.key(KEY), dtype=jnp.float32)
            for make in (ConvTranspose, equinox.nn.ConvTranspose)
        )
        oracle.assert_same(ours(x), theirs(x), "float32", 120)


@pytest.mark.parametrize("name", ["", "1d", "2d"])
def test_arguments_are_equinoxs(name):
    """Nothing is missing, renamed or reordered, and no default differs."""
    import equinox

    from jax_transconv.nn import equinox as mine

    ours, theirs = (
        inspect.signature(getattr(m, f"ConvTranspose{name}"))
        for m in (mine, equinox.nn)
    )
    assert list(ours.parameters.items()) == list(theirs.parameters.items())


def test_checkpoint(tmp_path, rng):
    """What Equinox's own layer wrote, ours reads."""
    import equinox

    from jax_transconv.nn.equinox import ConvTranspose2d

    old = equinox.nn.ConvTranspose2d(IN, OUT, 3, key=jax.random.key(1))
    equinox.tree_serialise_leaves(tmp_path / "layer.eqx", old)
    new = ConvTranspose2d(IN, OUT, 3, key=jax.random.key(2))
    new = equinox.tree_deserialise_leaves(tmp_path / "layer.eqx", new)
    oracle.assert_same(new(x := image(rng, 2)), old(x), "float64", 40)


def test_rank_message():
    _, layer = build(True, 2, {"kernel_size": 3})
    leaves, _ = build(True, 2, {"kernel_size": 3})
    message = (
        "ConvTranspose: x must have rank 3 (in_channels, *spatial), got rank 4 with "
        "shape (1, 4, 5, 5).\nResolution: use jax.vmap for batch axes."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(leaves, jnp.ones((1, IN, 5, 5)))
