"""The Linen layer against the oracle, torch and Flax's own conventions."""

import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

pytestmark = pytest.mark.flax


@pytest.fixture
def linen():
    from jax_transconv.nn import linen

    return linen


def to_layout(array, layout):
    return np.moveaxis(array, -3, -1) if layout == "NHWC" else array


def variables(problem):
    params = {"kernel": problem.kernel}
    if problem.bias is not None:
        params["bias"] = problem.bias
    return {"params": jax.tree.map(jnp.asarray, params)}


def run(linen, problem, layout):
    """All passes of one layer, "y" and "dx" in the layout."""
    layer = linen.ConvTranspose2d(
        8, **problem.arguments, layout=layout, precision="highest"
    )
    x = jnp.asarray(to_layout(problem.x, layout))
    y, pull = jax.vjp(layer.apply, variables(problem), x)
    gradients, dx = pull(jnp.asarray(to_layout(problem.dy, layout)))
    results = {"y": y, "dx": dx, "dw": gradients["params"]["kernel"]}
    if problem.bias is not None:
        results["db"] = gradients["params"]["bias"]
    return results


def test_results(linen, problem, layout):
    problem.check(layout, **run(linen, problem, layout))


@pytest.mark.torch
def test_results_are_torchs(linen, problem, layout, torch_results):
    results = run(linen, problem, layout)
    assert results.keys() == torch_results.keys()
    for name, result in results.items():
        theirs = torch_results[name].detach().numpy()
        if name in ("y", "dx"):
            theirs = to_layout(theirs, layout)
        reduction = problem.expected[name].reduction
        oracle.assert_same(result, theirs, "float32", reduction, what=name)


def test_parameters(linen, problem):
    layer = linen.ConvTranspose2d(8, **problem.arguments)
    x = jax.ShapeDtypeStruct((1, 5, 4, 4), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    expected = {"kernel": problem.kernel.shape}
    if problem.bias is not None:
        expected["bias"] = (8,)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == {"params": expected}


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_batch_axes(linen, rng, layout, batch):
    layer = linen.ConvTranspose2d(2, 3, strides=2, layout=layout, precision="highest")
    x = to_layout(rng.standard_normal((*batch, 3, 4, 5)).astype(np.float32), layout)
    y, params = layer.init_with_output(jax.random.key(0), jnp.asarray(x))
    tail = (9, 11, 2) if layout == "NHWC" else (2, 9, 11)
    assert y.shape == (*batch, *tail)
    if y.size:
        index = tuple(n - 1 for n in batch)
        alone = layer.apply(params, jnp.asarray(x[index]))
        oracle.assert_same(y[index], alone, "float32", 27)


def test_jit_and_vmap(linen, rng):
    layer = linen.ConvTranspose2d(2, 3, padding=[[1, 0], [0, -1]], precision="highest")
    x = jnp.asarray(rng.standard_normal((3, 2, 4, 5, 4)).astype(np.float32))
    y, params = layer.init_with_output(jax.random.key(0), x)
    oracle.assert_same(jax.jit(layer.apply)(params, x), y, "float32", 36)
    oracle.assert_same(jax.vmap(layer.apply, (None, 0))(params, x), y, "float32", 36)
    static = jax.jit(lambda m, p, x: m.apply(p, x), static_argnums=0)
    frozen = layer.clone(padding=((1, 0), (0, -1)))
    oracle.assert_same(static(frozen, params, x), y, "float32", 36)


def test_pickle(linen):
    layer = linen.ConvTranspose2d(2, 3, groups=2, kernel_init=linen.torch_init())
    assert pickle.loads(pickle.dumps(layer)) == layer


def test_string_padding_is_jaxs(linen, rng):
    x = jnp.asarray(rng.standard_normal((1, 4, 5, 3)).astype(np.float32))
    for padding in ("SAME", "VALID"):
        layer = linen.ConvTranspose2d(
            2, (3, 2), 2, padding=padding, use_bias=False, precision="highest"
        )
        y, params = layer.init_with_output(jax.random.key(0), x)
        kernel = params["params"]["kernel"]
        theirs = jax.lax.conv_transpose(
            x,
            jnp.flip(kernel, (2, 3)),
            (2, 2),
            padding,
            dimension_numbers=("NHWC", "IOHW", "NHWC"),
            precision="highest",
        )
        oracle.assert_same(y, theirs, "float32", 18)


def test_output_size(linen):
    layer = linen.ConvTranspose2d(2, 3, strides=2, padding=1, output_padding=1)
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    params = layer.init(jax.random.key(0), x)
    assert layer.apply(params, x).shape == (1, 8, 10, 2)
    assert layer.apply(params, x, output_size=(7, 10)).shape == (1, 7, 10, 2)
    with pytest.raises(ValueError, match=r"height 9 .* legal values are 7 to 8"):
        layer.apply(params, x, (9, 9))


def test_dtypes(linen):
    layer = linen.ConvTranspose2d(2, 3, dtype=jnp.bfloat16)
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    y, params = layer.init_with_output(jax.random.key(0), x)
    assert y.dtype == jnp.bfloat16
    assert params["params"]["kernel"].dtype == jnp.float32
    layer = linen.ConvTranspose2d(2, 3, param_dtype=jnp.float16)
    with jax.numpy_dtype_promotion("standard"):
        y, params = layer.init_with_output(jax.random.key(0), x)
        assert y.dtype == jnp.float32
        assert params["params"]["bias"].dtype == jnp.float16
        assert (
            layer.apply(params, jnp.ones((1, 4, 5, 3), jnp.int8)).dtype == jnp.float16
        )


@pytest.mark.parametrize("groups", [1, 4])
def test_default_kernel_init_sees_the_fan_of_one_output(linen, groups):
    """The variance of LeCun normal: 1 / (Cin // groups * kh * kw)."""
    layer = linen.ConvTranspose2d(256, (3, 2), groups=groups)
    params = layer.init(jax.random.key(0), jnp.ones((1, 2, 2, 64), jnp.float32))
    deviation = float(jnp.std(params["params"]["kernel"]))
    assert deviation == pytest.approx((64 // groups * 6) ** -0.5, rel=0.02)


@pytest.mark.parametrize("groups", [1, 4])
def test_torch_init_has_torchs_bounds(linen, groups):
    layer = linen.ConvTranspose2d(
        1024,
        (3, 2),
        groups=groups,
        kernel_init=linen.torch_init(),
        bias_init=linen.torch_init(),
    )
    params = layer.init(jax.random.key(0), jnp.ones((1, 2, 2, 64), jnp.float32))
    bound = (1024 // groups * 6) ** -0.5
    for leaf in jax.tree.leaves(params):
        assert 0.98 * bound < float(jnp.abs(leaf).max()) <= bound
        assert float(jnp.std(leaf)) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_torch_init_of_no_kernel(linen):
    message = (
        "torch_init: the fan must be given for a shape that is not a kernel's (cin, "
        "cout // groups, kh, kw), got (3,).\n"
        "Resolution: torch_init(fan=cout // groups * kh * kw)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        linen.torch_init()(jax.random.key(0), (3,))
    drawn = linen.torch_init(fan=100)(jax.random.key(0), (3,), jnp.float16)
    assert drawn.dtype == jnp.float16
    assert float(jnp.abs(drawn).max()) <= 0.1


def test_weights_of_the_torch_shim_fit(linen):
    """The same arrays in both, through the layer and through the shim."""
    from jax_transconv.torch_compat import ConvTranspose2d

    shim = ConvTranspose2d(4, 6, (3, 2), 2, 1, groups=2, seed=0, precision="highest")
    layer = linen.ConvTranspose2d(
        6, (3, 2), 2, 1, groups=2, layout="NCHW", precision="highest"
    )
    x = jnp.asarray(np.linspace(-1, 1, 80, dtype=np.float32).reshape(1, 4, 4, 5))
    params = {"params": {"kernel": shim.weight, "bias": shim.bias}}
    oracle.assert_same(layer.apply(params, x), shim(x), "float32", 12)


def test_forward_mode(linen):
    layer = linen.ConvTranspose2d(2, 3, autodiff="both", precision="highest")
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    params = layer.init(jax.random.key(0), x)
    _, tangent = jax.jvp(lambda x: layer.apply(params, x), (x,), (x,))
    oracle.assert_same(tangent, layer.apply(params, x), "float32", 27)


BAD = [
    (
        {"features": 5, "kernel_size": 3, "groups": 2},
        ValueError,
        "ConvTranspose2d: out_features must be a positive multiple of groups, got "
        "out_features=5 and groups=2.\n"
        "Resolution: use a multiple of 2, or other groups.",
    ),
    (
        {"features": 1, "kernel_size": 3, "groups": 4},
        ValueError,
        "ConvTranspose2d: out_features must be a positive multiple of groups, got "
        "out_features=1 and groups=4.\n"
        "Resolution: use a multiple of 4, or other groups.",
    ),
    (
        {"features": 4, "kernel_size": 3, "groups": 0},
        ValueError,
        "ConvTranspose2d: groups must be positive, got 0.\n"
        "Resolution: use groups >= 1.",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_construction_messages(linen, arguments, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        linen.ConvTranspose2d(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"kernel_size": 0}, ValueError, "kernel_size"),
        ({"kernel_size": (1, 2, 3)}, TypeError, "kernel_size"),
        ({"strides": 0}, ValueError, "stride"),
        ({"padding": "CIRCULAR"}, ValueError, "padding"),
        ({"output_padding": 1}, ValueError, "output_padding"),
        ({"layout": "HWNC"}, ValueError, "layout"),
        ({"groups": 2.0}, TypeError, "groups"),
        ({"groups": 2}, ValueError, "groups"),
    ],
)
def test_bad_arguments(linen, arguments, error, name):
    x = jnp.ones((1, 4, 5, 3), jnp.float32)
    with pytest.raises(error, match=rf"\b{name} must .*\nResolution: "):
        linen.ConvTranspose2d(**{"features": 2, "kernel_size": 3} | arguments).init(
            jax.random.key(0), x
        )


def test_rank_message(linen):
    message = (
        "ConvTranspose2d: x must have at least 3 axes (height, width, channels), got "
        "rank 2 with shape (4, 3).\nResolution: add the missing axes."
    )
    with pytest.raises(ValueError, match="x must have") as caught:
        linen.ConvTranspose2d(2, 3).init(jax.random.key(0), jnp.ones((4, 3)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "package", "words"),
    [
        ("linen", "flax", "linen and nnx need Flax, which is"),
        ("nnx", "flax", "linen and nnx need Flax, which is"),
        ("equinox", "equinox", "equinox needs Equinox, which is"),
        ("haiku", "haiku", "haiku needs Haiku, which is"),
    ],
)
def test_without_a_package(name, package, words):
    """The rest of the package works, and the error names the extra to install."""
    program = f"""
import sys
for name in ("flax", "equinox", "haiku", "torch"):
    sys.modules[name] = None
import jax_transconv.nn, jax_transconv.torch_compat
try:
    jax_transconv.nn.{name}
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"jax_transconv.nn: {words} not installed.\n"
        f"Resolution: pip install 'jax-transconv[{package}]'.\n"
    )


def test_layers_are_imported_on_demand():
    import jax_transconv.nn

    assert {"equinox", "haiku", "linen", "nnx"} <= set(dir(jax_transconv.nn))
    assert jax_transconv.nn.nnx.__name__ == "jax_transconv.nn.nnx"
    with pytest.raises(AttributeError, match=r"'jax_transconv\.nn' has no .* 'keras'"):
        _ = jax_transconv.nn.keras
