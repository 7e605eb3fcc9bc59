"""vmap over any subset of operands of every pass, against a loop; no loop inside."""

import functools
import itertools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_transconv import conv_transpose2d

CASES = [
    cases.Case("dense", 2, 3, 2, 3, 4, 3, 2, (2, 1), (1, 0)),
    cases.Case("groups", 2, 4, 6, 3, 2, 2, 3, (2, 2), (0, 1), groups=2),
    cases.Case("depthwise", 1, 3, 3, 3, 3, 3, 2, (1, 2), dilation=(2, 1), groups=3),
    cases.Case("multiplier", 2, 2, 6, 3, 3, 2, 2, (2, 2), groups=2),
    cases.Case("nhwc_groups", 2, 4, 6, 3, 2, 2, 3, (2, 2), groups=2, layout="NHWC"),
    cases.Case("no_bias", 2, 3, 2, 3, 4, 3, 2, (2, 1), bias=False),
]
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations("xwb", n)]
COUNT = 3


def bind(case, **changes):
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def members(case, count=COUNT):
    """x, w, b, dy of several samples, as lists of jax arrays by name."""
    samples = [
        cases.put(c, c.data())
        for c in (case.replace(name=f"{case}/{i}") for i in range(count))
    ]
    names = ("x", "w", "b", "dy")
    return {n: [s[i] for s in samples] for i, n in enumerate(names)}


def stack(values, axis):
    return jnp.stack(values, axis=axis)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("subset", SUBSETS, ids="".join)
@pytest.mark.parametrize("autodiff", ["reverse", "both"])
def test_forward(case, subset, autodiff):
    if not case.bias and "b" in subset:
        pytest.skip("this case has no bias")
    values = members(case)
    axes = tuple(0 if n in subset else None for n in "xwb")
    args = [stack(values[n], 0) if n in subset else values[n][0] for n in "xwb"]
    y = jax.jit(jax.vmap(bind(case, autodiff=autodiff), in_axes=axes))(*args)
    for i in range(COUNT):
        one = [values[n][i if n in subset else 0] for n in "xwb"]
        want = bind(case, backend="xla")(*one)
        oracle.assert_same(y[i], want, case.dtype, case.reduction)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    "subset",
    [s for n in (1, 2, 3) for s in itertools.combinations(("x", "w", "dy"), n)],
    ids="+".join,
)
@pytest.mark.parametrize("autodiff", ["reverse", "both"])
def test_gradients(case, subset, autodiff):
    """Per-example gradients with any operand shared, the cotangent included."""
    values = members(case)
    f = bind(case, autodiff=autodiff)

    def gradients(x, w, dy, f=f):
        if case.bias:
            return jax.vjp(lambda *a: f(*a), x, w, values["b"][0])[1](dy)
        return jax.vjp(lambda *a: f(*a), x, w)[1](dy)

    names = ("x", "w", "dy")
    axes = tuple(0 if n in subset else None for n in names)
    args = [stack(values[n], 0) if n in subset else values[n][0] for n in names]
    got = jax.jit(jax.vmap(gradients, in_axes=axes))(*args)
    for i in range(COUNT):
        one = [values[n][i if n in subset else 0] for n in names]
        want = gradients(*one, f=bind(case, backend="xla"))
        assert len(want) == len(got)
        for g, e in zip(got, want, strict=True):
            oracle.assert_same(g[i], e, case.dtype, case.reduction)


@pytest.mark.parametrize("case", CASES[:5], ids=str)
@pytest.mark.parametrize(
    "axes", list(itertools.product((1, 4, -1), (2, 4), (1,))), ids=str
)
@pytest.mark.parametrize("out_axis", [0, 2, -1])
def test_other_axes(case, axes, out_axis):
    values = members(case)
    args = [stack(values[n], a) for n, a in zip("xwb", axes, strict=True)]
    y = jax.vmap(bind(case), in_axes=axes, out_axes=out_axis)(*args)
    y = np.moveaxis(np.asarray(y), out_axis, 0)
    for i in range(COUNT):
        want = bind(case)(*(values[n][i] for n in "xwb"))
        oracle.assert_same(y[i], want, case.dtype, case.reduction)


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_nested(case):
    """Three nested vmaps, one operand each: an outer product of problems."""
    values = members(case, 2)
    f = jax.vmap(
        jax.vmap(
            jax.vmap(bind(case), in_axes=(None, None, 0)), in_axes=(None, 0, None)
        ),
        in_axes=(0, None, None),
    )
    y = f(*(stack(values[n], 0) for n in "xwb"))
    for i, j, k in itertools.product(range(2), repeat=3):
        want = bind(case)(values["x"][i], values["w"][j], values["b"][k])
        oracle.assert_same(y[i, j, k], want, case.dtype, case.reduction)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_grad_of_vmap(case):
    """The shared weight's gradient is the sum over the mapped axis."""
    values = members(case)
    xs, dys = stack(values["x"], 0), stack(values["dy"], 0)
    f = bind(case)

    def loss(w, b):
        return jnp.vdot(jax.vmap(f, in_axes=(0, None, None))(xs, w, b), dys)

    dw, db = jax.grad(loss, argnums=(0, 1))(values["w"][0], values["b"][0])
    want_w = want_b = 0
    for x, dy in zip(values["x"], values["dy"], strict=True):
        _, pullback = jax.vjp(
            lambda w, b, x=x: f(x, w, b), values["w"][0], values["b"][0]
        )
        one_w, one_b = pullback(dy)
        want_w, want_b = want_w + one_w, want_b + one_b
    oracle.assert_same(dw, want_w, case.dtype, COUNT * case.reduction)
    oracle.assert_same(db, want_b, case.dtype, COUNT * case.reduction)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_jvp_under_vmap(case):
    """Tangents mapped, primals not: what jacfwd does."""
    case = case.replace(dtype="float64")
    values = members(case)
    f = bind(case, autodiff="both")
    primals = tuple(values[n][0] for n in "xwb")

    def push(tx, tw, tb):
        return jax.jvp(f, primals, (tx, tw, tb))[1]

    got = jax.vmap(push)(*(stack(values[n], 0) for n in "xwb"))
    for i in range(COUNT):
        want = push(*(values[n][i] for n in "xwb"))
        oracle.assert_same(got[i], want, case.dtype, case.reduction)


@pytest.mark.parametrize(
    "subset", [("x",), ("w",), ("x", "w"), ("x", "w", "b")], ids="".join
)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_one_call_whatever_is_mapped(subset, groups, layout):
    """Batch, channels or groups take the mapped axis: one call, no loop, no while."""
    case = cases.Case("one", 2, 4, 6, 3, 2, 2, 3, (2, 2), groups=groups, layout=layout)
    values = members(case, 5)
    axes = tuple(0 if n in subset else None for n in "xwb")
    args = [stack(values[n], 0) if n in subset else values[n][0] for n in "xwb"]
    dy = stack(values["dy"], 0)
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    f = bind(case, backend=native)

    def both(x, w, b, dy):
        y, pullback = jax.vjp(f, x, w, b)
        return y, pullback(dy)

    text = jax.jit(jax.vmap(both, in_axes=(*axes, 0))).lower(*args, dy).as_text()
    calls = re.findall(r"custom_call @jax_transconv\.(\w+)\.v1", text)
    assert sorted(calls) == ["forward", "grad_input", "grad_weight"]
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("subset", SUBSETS, ids="".join)
def test_axis_of_length_zero(subset):
    case = CASES[1]
    values = members(case, 1)
    axes = tuple(0 if n in subset else None for n in "xwb")
    args = [
        jnp.zeros((0, *values[n][0].shape), "float32") if n in subset else values[n][0]
        for n in "xwb"
    ]
    y = jax.vmap(bind(case), in_axes=axes)(*args)
    assert y.shape == (0, *case.out_shape)
    assert y.dtype == jnp.float32

    def gradients(x, w, b):
        return jax.grad(lambda *a: bind(case)(*a).sum(), argnums=(0, 1, 2))(x, w, b)

    for g, n in zip(jax.vmap(gradients, in_axes=axes)(*args), "xwb", strict=True):
        assert g.shape == (0, *values[n][0].shape)


@pytest.mark.parametrize("subset", SUBSETS, ids="".join)
def test_empty_batch_inside(subset):
    """n = 0 in each member, while the mapped axis is not empty."""
    case = CASES[1].replace(name="empty", n=0)
    values = members(case)
    axes = tuple(0 if n in subset else None for n in "xwb")
    args = [stack(values[n], 0) if n in subset else values[n][0] for n in "xwb"]

    def gradients(x, w, b):
        return jax.grad(lambda *a: bind(case)(*a).sum(), argnums=(0, 1, 2))(x, w, b)

    y = jax.vmap(bind(case), in_axes=axes)(*args)
    assert y.shape == (COUNT, *case.out_shape)
    for g, n in zip(jax.vmap(gradients, in_axes=axes)(*args), "xwb", strict=True):
        np.testing.assert_array_equal(g, np.zeros((COUNT, *values[n][0].shape)))


@pytest.mark.parametrize("subset", [("b",), ("x", "b"), ("w", "b")], ids="".join)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_still_rounds_once(subset, dtype):
    """A mapped bias is added before the one rounding, as an unmapped one is."""
    case = cases.Case("rounding", 2, 64, 6, 4, 5, 3, 3, (2, 2), (1, 1), dtype=dtype)
    values = members(case)
    axes = tuple(0 if n in subset else None for n in "xwb")
    args = [stack(values[n], 0) if n in subset else values[n][0] for n in "xwb"]
    y = jax.vmap(bind(case), in_axes=axes)(*args)
    for i in range(COUNT):
        one = [np.asarray(values[n][i if n in subset else 0]) for n in "xwb"]
        want = case.expected(cases.Data(*one, case.data().dy))["y"]
        oracle.assert_close(y[i], want, dtype)
        once = oracle.round_to(want.value, dtype)
        # Rounded twice, one result in some ten is off by one ulp; rounded once, only
        # where float32 lands next to a tie.
        off = oracle.ulp_distance(np.asarray(y[i]), once) != 0
        assert off.mean() < 0.02


def test_unbatched_under_vmap(rng):
    """vmap over 3-D inputs is the batch that they would have been."""
    x = jnp.asarray(rng.standard_normal((5, 3, 4, 4)))
    w = jnp.asarray(rng.standard_normal((3, 2, 3, 3)))
    f = functools.partial(conv_transpose2d, stride=2)
    y = jax.vmap(f, in_axes=(0, None))(x, w)
    oracle.assert_same(y, f(x, w), "float64", 100)


def test_named_axis(rng):
    """A psum over the mapped axis sees the gradient of a shared weight."""
    x = jnp.asarray(rng.standard_normal((4, 1, 2, 3, 3)))
    w = jnp.asarray(rng.standard_normal((2, 3, 2, 2)))

    def local(x, w):
        grad = jax.grad(lambda w: (conv_transpose2d(x, w, stride=2) ** 2).sum())(w)
        return jax.lax.psum(grad, "devices")

    got = jax.vmap(local, in_axes=(0, None), axis_name="devices")(x, w)[0]
    want = jax.grad(lambda w: (conv_transpose2d(x[:, 0], w, stride=2) ** 2).sum())(w)
    oracle.assert_same(got, want, "float64", 200)
