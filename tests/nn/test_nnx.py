"""The NNX layer against the oracle, torch and the Linen layer."""

import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

pytestmark = pytest.mark.flax


@pytest.fixture
def nnx():
    from flax import nnx

    return nnx


@pytest.fixture
def layer_class():
    from jax_transconv.nn.nnx import ConvTranspose2d

    return ConvTranspose2d


def to_layout(array, layout):
    return np.moveaxis(array, -3, -1) if layout == "NHWC" else array


def run(nnx, layer_class, problem, layout):
    """All passes of one layer, "y" and "dx" in the layout."""
    layer = layer_class(
        4,
        8,
        **problem.arguments,
        layout=layout,
        precision="highest",
        rngs=nnx.Rngs(0),
    )
    layer.kernel[...] = jnp.asarray(problem.kernel)
    if problem.bias is not None:
        layer.bias[...] = jnp.asarray(problem.bias)
    graph, state = nnx.split(layer)
    x = jnp.asarray(to_layout(problem.x, layout))
    y, pull = jax.vjp(lambda state, x: nnx.merge(graph, state)(x), state, x)
    gradients, dx = pull(jnp.asarray(to_layout(problem.dy, layout)))
    results = {"y": y, "dx": dx, "dw": gradients["kernel"][...]}
    if problem.bias is not None:
        results["db"] = gradients["bias"][...]
    return results


def test_results(nnx, layer_class, problem, layout):
    problem.check(layout, **run(nnx, layer_class, problem, layout))


@pytest.mark.torch
def test_results_are_torchs(nnx, layer_class, problem, layout, torch_results):
    results = run(nnx, layer_class, problem, layout)
    assert results.keys() == torch_results.keys()
    for name, result in results.items():
        theirs = torch_results[name].detach().numpy()
        if name in ("y", "dx"):
            theirs = to_layout(theirs, layout)
        reduction = problem.expected[name].reduction
        oracle.assert_same(result, theirs, "float32", reduction, what=name)


def test_equals_linen(nnx, layer_class, problem, layout):
    from jax_transconv.nn import linen

    ours = layer_class(4, 8, **problem.arguments, layout=layout, rngs=nnx.Rngs(0))
    theirs = linen.ConvTranspose2d(8, **problem.arguments, layout=layout)
    params = {"kernel": ours.kernel[...]}
    if ours.bias is not None:
        params["bias"] = ours.bias[...]
    x = jnp.asarray(to_layout(problem.x, layout))
    np.testing.assert_array_equal(ours(x), theirs.apply({"params": params}, x))


def test_parameters(nnx, layer_class, problem):
    layer = layer_class(4, 8, **problem.arguments, rngs=nnx.Rngs(0))
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(layer, nnx.Param)))
    expected = {"kernel": problem.kernel.shape}
    if problem.bias is not None:
        expected["bias"] = (8,)
    assert shapes == expected


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_batch_axes(nnx, layer_class, rng, layout, batch):
    layer = layer_class(3, 2, 3, strides=2, layout=layout, rngs=nnx.Rngs(0))
    x = to_layout(rng.standard_normal((*batch, 3, 4, 5)).astype(np.float32), layout)
    tail = (9, 11, 2) if layout == "NHWC" else (2, 9, 11)
    assert layer(jnp.asarray(x)).shape == (*batch, *tail)


def test_jit_grad_and_vmap(nnx, layer_class, rng):
    """Lists of integers must not stand in the way of hashing."""
    layer = layer_class(
        3,
        2,
        [3, 2],
        [2, 1],
        padding=np.array([[1, 0], [0, -1]]),
        precision="highest",
        rngs=nnx.Rngs(0),
    )
    x = jnp.asarray(rng.standard_normal((3, 2, 4, 5, 3)).astype(np.float32))
    y = layer(x)
    assert y.shape == (3, 2, 8, 7, 2)
    oracle.assert_same(nnx.jit(lambda m, x: m(x))(layer, x), y, "float32", 18)
    mapped = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(layer, x)
    oracle.assert_same(mapped, y, "float32", 18)
    gradients = nnx.grad(lambda m: jnp.sum(jnp.square(m(x))))(layer)
    assert gradients["kernel"].shape == layer.kernel.shape
    assert jnp.abs(gradients["bias"][...]).min() > 0


def test_pickle(nnx, layer_class):
    layer = layer_class(3, 2, 3, rngs=nnx.Rngs(0))
    twin = pickle.loads(pickle.dumps(layer))
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    np.testing.assert_array_equal(twin(x), layer(x))


def test_output_size(nnx, layer_class):
    layer = layer_class(
        3, 2, 3, strides=2, padding=1, output_padding=1, rngs=nnx.Rngs(0)
    )
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    assert layer(x).shape == (1, 8, 10, 2)
    assert layer(x, output_size=(7, 10)).shape == (1, 7, 10, 2)


def test_dtypes(nnx, layer_class):
    layer = layer_class(
        3, 2, 3, dtype=jnp.float32, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)
    )
    assert layer.kernel.dtype == layer.bias.dtype == jnp.bfloat16
    assert layer(jnp.ones((1, 4, 5, 3), jnp.float16)).dtype == jnp.float32


@pytest.mark.parametrize("groups", [1, 4])
def test_initializers(nnx, layer_class, groups):
    from jax_transconv.nn.nnx import torch_init

    layer = layer_class(64, 256, (3, 2), groups=groups, rngs=nnx.Rngs(0))
    deviation = float(jnp.std(layer.kernel[...]))
    assert deviation == pytest.approx((64 // groups * 6) ** -0.5, rel=0.02)
    layer = layer_class(
        64,
        256,
        (3, 2),
        groups=groups,
        kernel_init=torch_init(),
        bias_init=torch_init(),
        rngs=nnx.Rngs(0),
    )
    bound = (256 // groups * 6) ** -0.5
    for leaf in (layer.kernel[...], layer.bias[...]):
        assert 0.95 * bound < float(jnp.abs(leaf).max()) <= bound


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"out_features": 5, "groups": 2},
            ValueError,
            "ConvTranspose2d: out_features must be a positive multiple of groups, got "
            "out_features=5 and groups=2.\n"
            "Resolution: use a multiple of 2, or other groups.",
        ),
        (
            {"in_features": 3, "groups": 2},
            ValueError,
            "ConvTranspose2d: in_features must be a positive multiple of groups, got "
            "in_features=3 and groups=2.\n"
            "Resolution: use a multiple of 2, or other groups.",
        ),
        (
            {"groups": -1},
            ValueError,
            "ConvTranspose2d: groups must be positive, got -1.\n"
            "Resolution: use groups >= 1.",
        ),
    ],
)
def test_construction_messages(nnx, layer_class, arguments, error, message):
    good = {"in_features": 4, "out_features": 8, "kernel_size": 3, "rngs": nnx.Rngs(0)}
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        layer_class(**good | arguments)


def test_rank_message(nnx, layer_class):
    layer = layer_class(3, 2, 3, layout="NCHW", rngs=nnx.Rngs(0))
    message = (
        "ConvTranspose2d: x must have at least 3 axes (channels, height, width), got "
        "rank 2 with shape (4, 3).\nResolution: add the missing axes."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(jnp.ones((4, 3), jnp.float32))
