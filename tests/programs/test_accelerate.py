"""accelerate: the same numbers with our kernels, wherever in a program they are."""

import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jax_transconv import accelerate

NHWC = ("NHWC", "HWIO", "NHWC")


def up(x, w):
    return lax.conv_transpose(x, w, (2, 3), "SAME", dimension_numbers=NHWC)


def same(f, *args, reduction=1000):
    """The same tree of results, to rounding."""
    got, want = accelerate(f)(*args), f(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        oracle.assert_same(a, b, a.dtype, reduction)


def program(f, *args):
    return str(jax.make_jaxpr(f)(*args))


def taken(f, *args):
    """How many calls of our primitives are in the accelerated program."""
    return program(accelerate(f), *args).count("= conv_transpose2d_")


@pytest.fixture
def arrays(rng):
    x = jnp.asarray(rng.standard_normal((2, 4, 5, 3)))
    w = jnp.asarray(rng.standard_normal((3, 2, 3, 3)))
    return x, w


# -- Which convolutions: every geometry, axis order and grouping. --

AXIS = st.tuples(
    st.integers(1, 5),  # size
    st.integers(1, 4),  # kernel
    st.integers(1, 4),  # stride
    st.integers(1, 3),  # dilation
    st.integers(-2, 4),  # padding, low
    st.integers(-2, 4),  # high
)
ORDERS = [NHWC, ("NCHW", "OIHW", "NCHW"), ("HNCW", "HOWI", "CWNH")]


@given(AXIS, AXIS, st.sampled_from(ORDERS), st.sampled_from([1, 2]))
def test_any_convolution(h, w, order, groups):
    """Values and both gradients, differentiated outside and inside."""
    size, kernel, stride, dilation, low, high = zip(h, w, strict=True)
    # Negative low padding is a fault of XLA on CPUs.
    padding = list(zip(map(abs, low), high, strict=True))
    extents = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    lengths = [
        (n - 1) * s + 1 + sum(p) - e
        for n, s, p, e in zip(size, stride, padding, extents, strict=True)
    ]
    if min(lengths) < 0:
        return
    rng = np.random.default_rng([*size, *kernel])

    def draw(letters, **sizes):
        return jnp.asarray(rng.standard_normal([sizes[a] for a in letters]))

    x = draw(order[0], N=2, C=4, H=size[0], W=size[1])
    k = draw(order[1], I=4 // groups, O=6, H=kernel[0], W=kernel[1])

    def f(x, k):
        return lax.conv_general_dilated(
            x,
            k,
            (1, 1),
            padding,
            lhs_dilation=stride,
            rhs_dilation=dilation,
            dimension_numbers=order,
            feature_group_count=groups,
        )

    same(f, x, k)
    gradient = jax.grad(lambda f, x, k: jnp.sin(f(x, k)).sum(), (1, 2))
    want = gradient(f, x, k)
    outside = gradient(accelerate(f), x, k)
    inside = accelerate(lambda x, k: gradient(f, x, k))(x, k)
    for got in (outside, inside):
        for a, b in zip(got, want, strict=True):
            oracle.assert_same(a, b, "float64", 1000)
    if max(stride) > 1:
        assert taken(f, x, k) == 1
        # The weight gradient that JAX derives is known as one.
        text = program(accelerate(lambda x, k: gradient(f, x, k)), x, k)
        if np.prod(np.add(lengths, 1)) > np.prod(kernel):
            assert "= conv_transpose2d_grad_weight" in text, (h, w, order, groups)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_one_axis(padding, rng):
    x = jnp.asarray(rng.standard_normal((2, 6, 3)))
    w = jnp.asarray(rng.standard_normal((4, 3, 5)))

    def f(x, w):
        return lax.conv_transpose(x, w, (3,), padding)

    same(f, x, w)
    assert taken(f, x, w) == 1
    gradient = jax.grad(lambda x, w: jnp.sin(f(x, w)).sum(), (0, 1))
    same(gradient, x, w)
    assert taken(gradient, x, w) == 2


def test_the_input_gradient_of_a_strided_convolution(rng):
    """It is a transposed convolution, in whose program there was none."""
    x = jnp.asarray(rng.standard_normal((2, 8, 9, 3)))
    w = jnp.asarray(rng.standard_normal((3, 3, 3, 4)))

    def loss(x):
        y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC)
        return jnp.sin(y).sum()

    same(jax.grad(loss), x)
    assert taken(loss, x) == 0
    assert taken(jax.grad(loss), x) == 1


LEFT = {
    "three axes": lambda x, w: lax.conv_transpose(
        x[..., None], w[..., None, :], (2, 2, 2), "SAME"
    ),
    "no stretched input": lambda x, w: lax.conv_transpose(x, w, (1, 1), "SAME"),
    "wider result": lambda x, w: lax.conv_transpose(
        *(a.astype(jnp.float32) for a in (x, w)),
        (2, 2),
        "SAME",
        preferred_element_type=jnp.float64,
    ),
    "complex": lambda x, w: lax.conv_transpose(
        *(a.astype(jnp.complex128) for a in (x, w)), (2, 2), "SAME"
    ),
    "no positions left": lambda x, w: lax.conv_transpose(
        x, w, (2, 2), [(-3, -3), (-4, -3)], dimension_numbers=NHWC
    ),
    "strided window over a dilated kernel": lambda x, w: lax.conv_general_dilated(
        *(x, w, (2, 2), [(2, 2), (2, 2)], (2, 2), (2, 2)), dimension_numbers=NHWC
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name, arrays):
    f = LEFT[name]
    assert taken(f, *arrays) == 0
    np.testing.assert_array_equal(accelerate(f)(*arrays), f(*arrays))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype, arrays):
    x, w = (a.astype(dtype) for a in arrays)
    same(up, x, w)
    assert taken(up, x, w) == 1


def test_precision_is_kept(arrays):
    x, w = (a.astype(jnp.float32) for a in arrays)
    for precision in ("default", "high", "highest"):
        with jax.default_matmul_precision(precision):
            text = program(accelerate(up), x, w)
        assert f"Precision.{precision.upper()}" in text
    assert "Precision.HIGHEST" in program(
        accelerate(
            lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", precision="float32")
        ),
        x,
        w,
    )


# -- Where in a program. --


def residual(x, w):
    return x + 0.1 * up(x, w)[:, : x.shape[1], : x.shape[2]]


@jax.custom_vjp
def with_vjp(x, w, n):
    return n * residual(x, w)


def _backward(saved, dy):
    x, w, n = saved
    dx, dw = jax.vjp(residual, x, w)[1](dy)
    return 2 * n * dx, 3 * n * dw, None  # not the derivative, so that it shows


with_vjp.defvjp(lambda x, w, n: (n * residual(x, w), (x, w, n)), _backward)


@jax.custom_jvp
def with_jvp(x, w):
    return residual(x, w)


@with_jvp.defjvp
def _tangent(primals, tangents):
    y, dy = jax.jvp(residual, primals, tangents)
    return y, 2 * dy  # likewise


def scanned(x, w):
    return lax.scan(lambda x, _: (residual(x, w), x.sum()), x, None, length=3)


def while_(x, w):
    def body(state):
        i, x = state
        return i + 1, residual(x, w)

    return lax.while_loop(lambda state: state[1].sum() + state[0] < 3, body, (0, x))[1]


PLACES = {
    "jit": (jax.jit(residual), 1),
    "jit in jit": (jax.jit(lambda x, w: jax.jit(residual)(2 * x, w)), 1),
    "scan": (scanned, 1),
    "map": (lambda x, w: lax.map(lambda x: residual(x[None], w), x), 1),
    "fori": (
        lambda x, w: lax.fori_loop(0, 3, lambda _, x: residual(x, w), x),
        1,
    ),
    "while": (while_, 1),
    "cond": (
        lambda x, w: lax.cond(
            x.sum() > 0, lambda x: residual(x, w), lambda x: 2 * residual(x, w), x
        ),
        2,
    ),
    "switch": (lambda x, w: lax.switch(1, [jnp.sin, lambda x: residual(x, w)], x), 1),
    "remat": (jax.checkpoint(residual), 1),
    "custom_vjp": (lambda x, w: with_vjp(x, w, 2), 1),
    "custom_vjp of one array": (lambda x, w: with_vjp(x, x[:3, :2, :3], 2), 1),
    "custom_jvp": (with_jvp, 1),
    "vmap": (lambda x, w: jax.vmap(residual, (1, None))(x[:, None], w), 1),
    "grad": (jax.grad(lambda x, w: jnp.sin(residual(x, w)).sum(), (0, 1)), 2),
    "jvp": (lambda x, w: jax.jvp(lambda x: residual(x, w), (x,), (x,)), 2),
}


@pytest.mark.parametrize("place", PLACES)
def test_inside_of(place, arrays):
    f, count = PLACES[place]
    if place == "custom_vjp of one array":
        arrays = (jnp.concatenate([arrays[0]] * 2), arrays[1])
    same(f, *arrays)
    assert taken(f, *arrays) == count
    assert "lhs_dilation=(2, 3)" not in program(accelerate(f), *arrays)


DIFFERENTIABLE = [p for p in PLACES if p != "while"]


@pytest.mark.parametrize("place", DIFFERENTIABLE)
def test_gradient_of(place, arrays):
    """The gradient outside, and none of it through XLA's stretched input."""
    f = PLACES[place][0]
    if place == "custom_vjp of one array":
        arrays = (jnp.concatenate([arrays[0]] * 2), arrays[1])

    def gradient(f):
        def loss(x, w):
            return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(f(x, w)))

        return jax.grad(loss, (0, 1))

    got, want = gradient(accelerate(f))(*arrays), gradient(f)(*arrays)
    for a, b in zip(got, want, strict=True):
        oracle.assert_same(a, b, "float64", 1000)
    if place != "grad":  # there, a strided convolution is differentiated outside
        assert "lhs_dilation=(2, 3)" not in program(gradient(accelerate(f)), *arrays)


@pytest.mark.parametrize("place", ["jit", "scan", "remat", "custom_jvp", "vmap"])
def test_forward_mode(place, arrays):
    f = PLACES[place][0]
    got = jax.jvp(accelerate(f), arrays, arrays)
    want = jax.jvp(f, arrays, arrays)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        oracle.assert_same(a, b, "float64", 1000)


TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "jit of vmap of grad": lambda f: jax.jit(
        jax.vmap(jax.grad(lambda x, w: jnp.sin(f(x, w)).sum(), (0, 1)), (0, None))
    ),
    "grad of grad": lambda f: jax.grad(
        lambda x, w: (jax.grad(lambda x: jnp.sin(f(x, w)).sum())(x) ** 2).sum(), (0, 1)
    ),
    "accelerate": accelerate,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_composes_with(name, arrays):
    x, w = arrays
    x = x[:, None] if "vmap" in name else x
    transform = TRANSFORMS[name]
    got, want = transform(accelerate(residual))(x, w), transform(residual)(x, w)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        oracle.assert_same(a, b, "float64", 1000)


def test_shared_programs_stay_shared(arrays):
    """A function that is called three times is still traced and compiled once."""
    inner = jax.jit(residual)
    x, w = arrays
    text = program(accelerate(lambda x: inner(inner(inner(x, w), w), w)), x)
    assert text.count("= conv_transpose2d_forward") == 1


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_sharded_arrays(kind, arrays):
    """jit with sharded operands, and shard_map, give the same numbers."""
    mesh = jax.make_mesh(
        (2,),
        ("data",),
        devices=jax.devices("cpu")[:2],
        axis_types=(getattr(jax.sharding.AxisType, kind),),
    )
    split, whole = (jax.sharding.PartitionSpec(a) for a in ("data", None))
    x, w = arrays
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, split))
        got = jax.jit(accelerate(up))(placed, w)
        oracle.assert_same(got, up(x, w), "float64", 30)
        want = jax.grad(lambda w: jnp.sin(up(x, w)).sum())(w)
        for check in (True, False):
            mapped = jax.shard_map(
                up, in_specs=(split, whole), out_specs=split, check_vma=check
            )
            assert taken(mapped, placed, w) == 1
            ours = accelerate(mapped)
            got = jax.jit(jax.grad(lambda w, f=ours: jnp.sin(f(placed, w)).sum()))(w)
            oracle.assert_same(got, want, "float64", 1000)


def test_a_symbolic_batch(arrays):
    """Exported with any number of images; a symbolic kernel is left alone."""
    (n,) = jax.export.symbolic_shape("n")
    x, w = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
    x = jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
    gradient = jax.grad(lambda x, w: jnp.sin(up(x, w)).sum(), (0, 1))
    assert taken(gradient, x, w) == 2
    exported = jax.export.export(jax.jit(accelerate(gradient)))(x, w)
    got = exported.call(*arrays)
    for a, b in zip(got, gradient(*arrays), strict=True):
        oracle.assert_same(a, b, "float64", 1000)
    w = jax.ShapeDtypeStruct((*w.shape[:3], n), w.dtype)
    assert taken(up, arrays[0], w) == 0


def test_effects_and_axis_names(arrays, capfd):
    """Prints come out, in order, and collectives see their axis."""
    x, w = arrays

    def printing(x):
        def body(x, i):
            jax.debug.print("{}", i + 0 * up(x, w).sum().astype(int), ordered=True)
            return x, None

        return lax.scan(body, x, jnp.arange(3))[0]

    accelerate(printing)(x)
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["0", "1", "2"]

    def centred(x):
        y = up(x[None], w)
        return y - lax.pmean(y, "images")

    got = jax.vmap(accelerate(centred), axis_name="images")(x)
    want = jax.vmap(centred, axis_name="images")(x)
    oracle.assert_same(got, want, "float64", 30)


def test_without_jit(arrays):
    with jax.disable_jit():
        oracle.assert_same(accelerate(up)(*arrays), up(*arrays), "float64", 30)


# -- Arguments. --


def test_what_is_no_array_stays(arrays):
    x, w = arrays

    def f(x, *, w, upside_down=False, name=None):
        assert name in (None, "a")
        assert isinstance(upside_down, bool)
        y = up(x, w["kernel"])
        return {"y": -y if upside_down else y, "none": None, "constant": 3}

    got = accelerate(f)(x, w={"kernel": w}, upside_down=True, name="a")
    assert got["none"] is None
    assert isinstance(got["constant"], jax.Array)
    oracle.assert_same(got["y"], -up(x, w), "float64", 30)


def test_closed_over_arrays_are_differentiated(arrays):
    x, w = arrays
    got = jax.grad(lambda w: accelerate(lambda x: up(x, w).sum())(x))(w)
    oracle.assert_same(got, jax.grad(lambda w: up(x, w).sum())(w), "float64", 100)


def test_backend_is_checked_and_kept(arrays):
    with pytest.raises(ValueError, match="backend must be 'auto'"):
        accelerate(up, backend="fast")
    text = program(accelerate(up, backend="xla"), *arrays)
    assert "backend=xla" in text


@pytest.mark.flax
def test_a_module_that_changes_is_refused(arrays):
    from flax import nnx

    x, _ = arrays
    layers = [nnx.ConvTranspose(3, 4, (3, 3), strides=2, rngs=nnx.Rngs(0))]
    model = nnx.Sequential(*layers, nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    x = x.astype(jnp.float32)
    with pytest.raises(ValueError, match="changed a Sequential, which would be lost"):
        accelerate(lambda model, x: model(x))(model, x)

    graph, state = nnx.split(model)

    def pure(state, x):
        model = nnx.merge(graph, state)
        return model(x), nnx.state(model)

    got = accelerate(pure)(jax.tree.map(jnp.copy, state), x)
    want = pure(jax.tree.map(jnp.copy, state), x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        oracle.assert_same(a, b, "float32", 1000)


@pytest.mark.flax
def test_a_linen_model(rng):
    from flax import linen

    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, x):
            for features in (4, 2):
                # On a GPU both would be TF32, each with errors of its own.
                layer = linen.ConvTranspose(
                    features, (4, 4), (2, 2), precision="highest"
                )
                x = layer(x)
                x = linen.gelu(x)
            return x

    model = Decoder()
    x = jnp.asarray(rng.standard_normal((2, 4, 4, 3)), jnp.float32)
    params = model.init(jax.random.key(0), x)
    same(jax.grad(lambda params, x: (model.apply(params, x) ** 2).sum()), params, x)
    assert taken(model.apply, params, x) == 2


def test_every_pair_of_places(arrays):
    """One inside of the other; a few of the pairs, since each compiles."""
    wrap = {
        "jit": jax.jit,
        "remat": jax.checkpoint,
        "scan": lambda f: (
            lambda x, w: lax.scan(lambda x, _: (f(x, w), None), x, None, length=2)[0]
        ),
        "cond": lambda f: lambda x, w: lax.cond(True, f, lambda x, w: x, x, w),
    }
    for outer, inner in itertools.permutations(wrap, 2):
        f = wrap[outer](wrap[inner](residual))
        assert taken(f, *arrays) == 1, (outer, inner)
    same(wrap["scan"](wrap["remat"](with_jvp)), *arrays)


def closing_over(w, kind):
    """A function of x whose derivative rule uses w, which is none of its arguments."""
    if kind == "custom_vjp":

        @jax.custom_vjp
        def call(x):
            return up(x, w)

        def backward(x, dy):
            return (2 * jax.vjp(lambda x: up(x, w), x)[1](dy)[0],)

        call.defvjp(lambda x: (up(x, w), x), backward)
    else:

        @jax.custom_jvp
        def call(x):
            return up(x, w)

        @call.defjvp
        def rule(primals, tangents):
            y, dy = jax.jvp(lambda x: up(x, w), primals, tangents)
            return y, 2 * dy

    return call


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_rule_that_closes_over_a_traced_array(kind, arrays):
    """An error that says what to do, and what it says works."""

    def loss(x, w):
        return jnp.sin(closing_over(w, kind)(x)).sum()

    oracle.assert_same(accelerate(loss)(*arrays), loss(*arrays), "float64", 1000)
    want = jax.grad(loss)(*arrays)
    # JAX's own jit cannot differentiate it either.
    with pytest.raises((TypeError, jax.errors.UnexpectedTracerError)):
        jax.grad(jax.jit(loss))(*arrays)
    message = "uses an array that was there only while fn was traced"
    with pytest.raises(ValueError, match=rf"{message}.\nResolution: ") as raised:
        jax.grad(accelerate(loss))(*arrays)
    assert "accelerate(jax.grad(fn))" in str(raised.value)
    inside = accelerate(jax.grad(loss))
    oracle.assert_same(inside(*arrays), want, "float64", 1000)
    assert "lhs_dilation=(2, 3)" not in program(inside, *arrays)

    x, w = arrays
    outside = accelerate(lambda x: loss(x, w))  # w is not traced with it
    oracle.assert_same(jax.grad(outside)(x), want, "float64", 1000)


def test_other_type_errors_are_not_explained():
    @jax.custom_vjp
    def call(x):
        return 2 * x

    def backward(_, dy):
        raise TypeError("a fault of the user's")

    call.defvjp(lambda x: (2 * x, None), backward)
    with pytest.raises(TypeError, match="a fault of the user's"):
        jax.grad(accelerate(call))(1.0)


def test_custom_vjp_that_closes_over_an_array() -> None:
    x, kernel = jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8))

    @jax.custom_vjp
    def up(x):
        return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME")

    up.defvjp(lambda x: (up(x), x), lambda x, g: (jnp.sum(g) * x,))

    def loss(x):
        return (up(x) ** 2).sum()

    got = jax.grad(accelerate(loss))(x)
    np.testing.assert_allclose(got, jax.grad(loss)(x), rtol=1e-4)
