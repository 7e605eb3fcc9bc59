"""The drop-in layers against Flax's own: arguments, parameters, values, gradients."""

import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

pytestmark = pytest.mark.flax

IN, OUT = 3, 5
KERNELS = [3, (4,), (4, 2), (1, 5)]
PADDINGS = ["SAME", "VALID", "CIRCULAR", 1, "ints", "pairs"]
STRIDES = [None, 2, "mixed"]
DILATIONS = [None, "mixed"]


@pytest.fixture(params=["linen", "nnx"])
def api(request):
    """Builds a layer, ours or Flax's, as (params, function of params and x)."""
    return {"linen": build_linen, "nnx": build_nnx}[request.param]


def linen_layer(ours, kernel_size, arguments):
    from flax import linen as theirs

    from jax_transconv.nn import linen

    return (linen if ours else theirs).ConvTranspose(OUT, kernel_size, **arguments)


def build_linen(ours, x, kernel_size, **arguments):
    layer = linen_layer(ours, kernel_size, arguments)
    variables = jax.jit(layer.init)(jax.random.key(7), x)
    return variables["params"], lambda params, x: layer.apply({"params": params}, x)


def build_linen_drawn(ours, x, kernel_size, **arguments):
    """Parameters from numpy, for the grids: to compile a layer's own takes longest."""
    layer = linen_layer(ours, kernel_size, arguments)
    shapes = jax.eval_shape(layer.init, jax.random.key(7), x)["params"]
    rng = np.random.default_rng(7)
    params = jax.tree.map(
        lambda s: jnp.asarray(rng.standard_normal(s.shape), s.dtype), shapes
    )
    return params, lambda params, x: layer.apply({"params": params}, x)


def build_nnx(ours, x, kernel_size, **arguments):
    from flax import nnx as theirs

    from jax_transconv.nn import nnx

    layer = (nnx if ours else theirs).ConvTranspose(
        x.shape[-1], OUT, kernel_size, **arguments, rngs=theirs.Rngs(7)
    )
    graph, state = theirs.split(layer)

    def apply(params, x):
        full = jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(params))
        return theirs.merge(graph, full)(x)

    return theirs.to_pure_dict(state), apply


def image(rng, rank, dtype="float64"):
    return jnp.asarray(rng.standard_normal((*(2, 8, 7)[: 1 + rank], IN)), dtype)


def same(api, x, kernel_size, reduction=400, **arguments):
    """Parameters, values and all gradients of both layers agree."""
    params, ours = api(True, x, kernel_size, **arguments)
    expected, theirs = api(False, x, kernel_size, **arguments)
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    got, want = (passes(f, params, x) for f in (ours, theirs))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        oracle.assert_same(a, b, a.dtype, reduction)


def passes(layer, params, x):
    """The result and the gradients of the parameters and of x."""

    @jax.jit
    def run(params, x):
        y, pull = jax.vjp(layer, params, x)
        dy = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return y, *pull(dy)

    return run(params, x)


F64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}


def grid():
    """Every padding with every kernel, each with two of the strides and dilations."""
    cases = []
    rest = itertools.cycle(itertools.product(STRIDES, DILATIONS))
    for number, (kernel, padding, _) in enumerate(
        itertools.product(KERNELS, PADDINGS, range(2))
    ):
        stride, dilation = next(rest)
        rank = 1 if isinstance(kernel, int) else len(kernel)
        arguments = {
            "padding": {
                "ints": (2, 1)[:rank],
                "pairs": ((2, 1), (0, 3))[:rank],
            }.get(padding, padding),
            "strides": (3, 2)[:rank] if stride == "mixed" else stride,
            "kernel_dilation": (3, 2)[:rank] if dilation == "mixed" else dilation,
            "transpose_kernel": number % 3 == 0,
        }
        name = f"{kernel}-{padding}-{stride}-{dilation}"
        name = name.replace(" ", "")
        cases.append(pytest.param(kernel, rank, arguments, id=name))
    return cases


@pytest.mark.parametrize(("kernel", "rank", "arguments"), grid())
def test_values_and_gradients(kernel, rank, arguments, rng):
    same(build_linen_drawn, image(rng, rank), kernel, **arguments, **F64)


@pytest.mark.parametrize("padding", PADDINGS[:4])
@pytest.mark.parametrize("kernel", [3, (4, 2)])
def test_both_layers(api, kernel, padding, rng):
    """The layers share what the grid has tested: here it is that they pass it all."""
    same(
        api,
        image(rng, 1 if kernel == 3 else 2),
        kernel,
        strides=3,
        kernel_dilation=2,
        padding=padding,
        transpose_kernel=True,
        **F64,
    )


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("kernel", [1, 2, 5, 6, 13])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_circular(size, kernel, stride, rng):
    """Kernels shorter than a stride and longer than several periods."""
    x = jnp.asarray(rng.standard_normal((2, size, IN)))
    for transpose_kernel in (False, True):
        arguments = {
            "strides": stride,
            "padding": "CIRCULAR",
            "transpose_kernel": transpose_kernel,
        }
        params, ours = build_linen_drawn(True, x, kernel, **arguments, **F64)
        _, theirs = build_linen_drawn(False, x, kernel, **arguments, **F64)
        y, want = jax.jit(lambda *a, f=ours, g=theirs: (f(*a), g(*a)))(params, x)
        oracle.assert_same(y, want, "float64", 100)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("kernel", [3, (3, 2)])
def test_batch_axes(api, batch, kernel, rng):
    shape = (*batch, 5, 4, IN) if kernel != 3 else (*batch, 5, IN)
    same(api, jnp.asarray(rng.standard_normal(shape)), kernel, **F64)


@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_mask_and_no_bias(api, transpose_kernel, rng):
    channels = (OUT, IN) if transpose_kernel else (IN, OUT)
    mask = jnp.tril(jnp.ones((3, 2, *channels)))
    same(
        api,
        image(rng, 2),
        (3, 2),
        mask=mask,
        use_bias=False,
        transpose_kernel=transpose_kernel,
        **F64,
    )


@pytest.mark.parametrize(
    ("x", "dtype", "param_dtype"),
    [
        ("float32", None, "float32"),
        ("bfloat16", None, "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", None, "float16"),
        ("int32", None, "float32"),
    ],
)
def test_dtypes(api, x, dtype, param_dtype, rng):
    with jax.numpy_dtype_promotion("standard"):
        image_ = (8 * image(rng, 2, "float32")).astype(x)
        arguments = {"dtype": dtype, "param_dtype": param_dtype, "precision": "highest"}
        params, ours = api(True, image_, (3, 3), strides=(2, 2), **arguments)
        _, theirs = api(False, image_, (3, 3), strides=(2, 2), **arguments)
        y, want = ours(params, image_), theirs(params, image_)
    assert y.dtype == want.dtype
    oracle.assert_same(y, want, y.dtype, 30)


def test_promote_dtype(api, rng):
    """The layer's own function decides, whichever of the two signatures it has."""

    def to_half(*args, dtype):
        del dtype
        args = args[0] if len(args) == 1 else args
        return tuple(None if a is None else a.astype(jnp.float16) for a in args)

    x = image(rng, 2, "float32")
    params, ours = api(True, x, (3, 3), promote_dtype=to_half)
    assert ours(params, x).dtype == jnp.float16


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        ((2, 3, 2), F64),
        ((3, 2), {"preferred_element_type": jnp.float64, "use_bias": False}),
    ],
)
def test_the_rest_is_flaxs(api, kernel, arguments, rng):
    """Three axes and a wider result are computed, by Flax's own code."""
    shape = (*(2, 4, 3, 5)[: len(kernel) + 1], IN)
    x = jnp.asarray(
        rng.standard_normal(shape), "float64" if len(shape) > 4 else "float32"
    )
    params, ours = api(True, x, kernel, **arguments)
    _, theirs = api(False, x, kernel, **arguments)
    np.testing.assert_array_equal(ours(params, x), theirs(params, x))
    assert "conv_transpose2d" not in str(jax.make_jaxpr(ours)(params, x))


def test_our_kernels_run(api, rng):
    x = image(rng, 2)
    params, ours = api(True, x, (3, 3), **F64)
    assert "conv_transpose2d_forward" in str(jax.make_jaxpr(ours)(params, x))


def test_forward_mode_and_vmap(api, rng):
    x = image(rng, 2)
    params, ours = api(True, x, (3, 3), strides=(2, 2), **F64)
    _, theirs = api(False, x, (3, 3), strides=(2, 2), **F64)
    for f in (
        lambda layer: jax.jvp(layer, (params, x), (params, x))[1],
        lambda layer: jax.vmap(layer, (None, 0))(params, x),
        lambda layer: jax.jit(layer)(params, x),
    ):
        oracle.assert_same(f(ours), f(theirs), "float64", 30)


def test_bias_and_weight_gradient_in_one_pass(rng):
    x = image(rng, 2)
    params, ours = build_linen(True, x, (3, 3), **F64)
    gradient = jax.grad(lambda params, x: ours(params, x).sum(), (0, 1))
    program = str(jax.make_jaxpr(gradient)(params, x))
    assert len(re.findall(r"bias=True", program)) == 1
    assert program.count("= conv_transpose2d_grad_weight") == 1


@pytest.mark.parametrize("name", ["linen", "nnx"])
def test_arguments_are_flaxs(name):
    """Nothing is missing, renamed or reordered, and no default differs."""
    import flax.linen
    import flax.nnx

    import jax_transconv.nn

    ours = inspect.signature(getattr(jax_transconv.nn, name).ConvTranspose)
    theirs = inspect.signature(getattr(flax, name).ConvTranspose)
    assert list(ours.parameters.items()) == list(theirs.parameters.items())


def test_names_in_a_linen_model(rng):
    """The automatic name of a layer, and so the tree of a checkpoint, is Flax's."""
    from flax import linen as theirs

    from jax_transconv.nn import linen

    def model(module):
        return theirs.Sequential([module.ConvTranspose(OUT, (3, 3)), theirs.relu])

    x = image(rng, 2)
    with jax.numpy_dtype_promotion("standard"):
        old = model(theirs).init(jax.random.key(0), x)
        new = model(linen).init(jax.random.key(0), x)
    assert jax.tree.structure(old) == jax.tree.structure(new)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"strides": (2, 2, 2)},
            "ConvTranspose: strides must have one value for each of the kernel's 2 "
            "axes, got 3: (2, 2, 2).\nResolution: pass an int or 2 ints.",
        ),
        (
            {"padding": "CAUSAL"},
            "ConvTranspose: padding must be 'SAME', 'VALID', 'CIRCULAR', an int, or an "
            "int or a pair for each spatial axis, got 'CAUSAL'.\n"
            "Resolution: use one of these forms.",
        ),
        (
            {"padding": ((1, 1),)},
            "ConvTranspose: padding must have one int or pair for each of the kernel's "
            "2 axes, got 1: ((1, 1),).\nResolution: write it as ((low, high), ...).",
        ),
        (
            {"mask": np.ones((3, 3))},
            "ConvTranspose: mask must have the shape of the kernel, got mask (3, 3) "
            "and kernel (3, 3, 3, 5).\nResolution: make the mask with that shape.",
        ),
    ],
)
def test_messages(api, arguments, message, rng):
    x = image(rng, 2)

    def call():
        params, ours = api(True, x, (3, 3), **arguments, **F64)
        return ours(params, x)

    with pytest.raises(ValueError, match=f"^{re.escape(message)}(\n-|$)"):
        call()


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((-3, -3), (-3, -3))])
def test_empty_output_or_image(api, padding):
    """Flax gives an array, if only of the bias; here it is an error."""
    size = (4, 4) if isinstance(padding, tuple) else (0, 4)
    x = jnp.ones((2, *size, IN))
    arguments = {"strides": (2, 2), "padding": padding, **F64}
    params, theirs = api(False, jnp.ones((2, 4, 4, IN)), (3, 3), **arguments)
    _, ours = api(True, jnp.ones((2, 9, 9, IN)), (3, 3), **arguments)
    found = theirs(params, x)
    assert (found.size == 0) == isinstance(padding, tuple)
    message = "output height would be|must not be empty in space"
    with pytest.raises(ValueError, match=message):
        ours(params, x)
    batch = jnp.ones((0, 9, 9, IN))
    assert ours(params, batch).shape == theirs(params, batch).shape


def test_empty_circular_image(api):
    arguments = {"padding": "CIRCULAR", **F64}
    params, ours = api(True, jnp.ones((2, 4, 4, IN)), (3, 3), **arguments)
    message = r"inputs must not be empty in space, got \(0, 4\)\.\nResolution: "
    with pytest.raises(ValueError, match=message):
        ours(params, jnp.ones((2, 0, 4, IN)))


def test_too_few_axes():
    from jax_transconv.nn.linen import ConvTranspose

    layer = ConvTranspose(OUT, (3, 3))
    with pytest.raises(ValueError, match=r"inputs must have at least 3 axes .* rank 2"):
        layer.init(jax.random.key(0), jnp.ones((4, IN), jnp.float32))
