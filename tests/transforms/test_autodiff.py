"""Differentiation: every order, both modes, and nothing that was not asked for."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.test_util import check_grads

from jax_transconv import conv_transpose2d

CASES = [
    cases.Case("dense", 2, 3, 2, 3, 4, 3, 2, (2, 1), (1, 0), (1, 0)),
    cases.Case("groups", 1, 4, 6, 3, 2, 2, 3, (2, 2), (0, 1), groups=2),
    cases.Case("depthwise", 2, 3, 3, 3, 3, 3, 2, (1, 2), dilation=(2, 1), groups=3),
    cases.Case("multiplier", 1, 2, 4, 2, 3, 2, 2, (3, 2), groups=2),
    cases.Case("crop", 1, 2, 3, 3, 2, 2, 3, (2, 2), ((-1, 2), (1, -3))),
    cases.Case("both_strides", 1, 2, 2, 3, 3, 2, 2, (2, 3), dilation=(3, 2)),
    cases.Case("no_bias", 2, 2, 3, 2, 3, 2, 2, bias=False),
    cases.Case("nhwc", 2, 3, 2, 3, 4, 3, 2, (2, 1), (1, 0), layout="NHWC"),
]
CASES = [c.replace(dtype="float64") for c in CASES]
FORMS = [pytest.param("reverse", id="reverse"), pytest.param("both", id="both")]


def bind(case, **changes):
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def args_of(case):
    x, w, b, dy = cases.put(case, case.data())
    return ((x, w) if b is None else (x, w, b)), dy


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("autodiff", FORMS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_check_grads_reverse(case, autodiff, order):
    """Against finite differences, of a function that is not linear in anything."""
    if order == 3 and case.name not in ("dense", "groups", "crop"):
        pytest.skip("order 3 is checked on three of the cases")
    args, _ = args_of(case)
    f = bind(case, autodiff=autodiff)
    check_grads(
        lambda *a: jnp.sin(f(*a)) / 4,
        args,
        order=order,
        modes=["rev"],
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_check_grads_forward(case):
    args, _ = args_of(case)
    f = bind(case, autodiff="both")
    check_grads(
        lambda *a: jnp.sin(f(*a)),
        args,
        order=2,
        modes=["fwd", "rev"],
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("autodiff", FORMS)
def test_second_order_is_exact(case, autodiff):
    """d/dx of <dL/dw, v> and its like against the oracle: the op is bilinear."""
    (x, w, *_), dy = args_of(case)
    f = bind(case, autodiff=autodiff)
    v = cases.put(case, case.replace(name=f"{case}-v").data())

    def dw_dot_v(x, dy):
        return jnp.vdot(jax.grad(lambda w: jnp.vdot(f(x, w), dy))(w), v[1])

    def dx_dot_v(w, dy):
        return jnp.vdot(jax.grad(lambda x: jnp.vdot(f(x, w), dy))(x), v[0])

    plain = case.replace(bias=False)
    data = case.data()
    with_w = plain.expected(cases.Data(data.x, np.asarray(v[1]), None, data.dy))
    with_x = plain.expected(
        cases.Data(case.from_layout(v[0]), data.weight, None, data.dy)
    )
    got = jax.grad(dw_dot_v, argnums=(0, 1))(x, dy)
    oracle.assert_close(case.from_layout(got[0]), with_w["dx"], case.dtype)
    oracle.assert_close(case.from_layout(got[1]), with_w["y"], case.dtype)
    got = jax.grad(dx_dot_v, argnums=(0, 1))(w, dy)
    oracle.assert_close(got[0], with_x["dw"], case.dtype)
    oracle.assert_close(case.from_layout(got[1]), with_x["y"], case.dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jvp_and_linearize(case):
    args, _ = args_of(case)
    tangents, _ = args_of(case.replace(name=f"{case}-t"))
    f = bind(case, autodiff="both")
    y, dy = jax.jvp(f, args, tangents)
    primal, linear = jax.linearize(f, *args)
    x, w, *_ = args
    tx, tw, *tb = tangents
    want = bind(case)(tx, w, *tb) + bind(case)(x, tw)
    oracle.assert_same(y, bind(case)(*args), case.dtype, case.reduction)
    oracle.assert_same(primal, y, case.dtype, case.reduction)
    oracle.assert_same(dy, want, case.dtype, case.reduction)
    oracle.assert_same(linear(*tangents), want, case.dtype, case.reduction)


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_jvp_in_one_argument(argnum):
    """The others have no tangent at all, which is another rule than a zero one."""
    case = CASES[0]
    args, _ = args_of(case)
    tangents, _ = args_of(case.replace(name="t"))
    f = bind(case, autodiff="both")

    def of_one(value):
        return f(*args[:argnum], value, *args[argnum + 1 :])

    _, got = jax.jvp(of_one, (args[argnum],), (tangents[argnum],))
    zeros = [jnp.zeros_like(a) for a in args]
    zeros[argnum] = tangents[argnum]
    _, want = jax.jvp(f, args, tuple(zeros))
    oracle.assert_same(got, want, case.dtype, case.reduction)
    assert np.abs(got).max() > 0.1


def test_hessian():
    case = CASES[1]
    args, _ = args_of(case)
    f = bind(case, autodiff="both")

    def loss(x):
        return jnp.sum(f(x, *args[1:]) ** 2) / 2

    hessian = jax.hessian(loss)(args[0])
    # The op is linear in x, so the Hessian is J^T J.
    jacobian = jax.jacrev(bind(case), argnums=0)(*args).reshape(-1, args[0].size)
    got = np.asarray(hessian).reshape(args[0].size, -1)
    oracle.assert_same(got, jacobian.T @ jacobian, case.dtype, 1000)
    assert np.abs(got).max() > 0.1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jacobians_agree(case):
    args, _ = args_of(case)
    wrt = tuple(range(len(args)))
    reverse = jax.jacrev(bind(case), argnums=wrt)(*args)
    forward = jax.jacfwd(bind(case, autodiff="both"), argnums=wrt)(*args)
    for a, b in zip(reverse, forward, strict=True):
        oracle.assert_same(a, b, case.dtype, case.reduction)


def test_forward_mode_is_refused_by_default():
    """As any custom_vjp does; the text that our documentation quotes."""
    args, _ = args_of(CASES[0])
    f = bind(CASES[0])
    for attempt in (
        lambda: jax.jvp(f, args, args),
        lambda: jax.jacfwd(f)(*args),
        lambda: jax.linearize(f, *args)[1](*args),
    ):
        with pytest.raises(TypeError, match="custom_vjp"):
            attempt()


def test_forward_over_reverse_by_default():
    """The gradient consumes the custom_vjp: what is left can be pushed forward."""
    args, dy = args_of(CASES[0])
    tangents, _ = args_of(CASES[0].replace(name="t"))
    products = []
    for autodiff in ("reverse", "both"):
        f = bind(CASES[0], autodiff=autodiff)
        grad = jax.grad(lambda *a, f=f: jnp.vdot(jnp.sin(f(*a)), dy), argnums=(0, 1, 2))
        products.append(jax.jvp(grad, args, tangents)[1])
    for a, b in zip(*products, strict=True):
        oracle.assert_same(a, b, "float64", 100)
        assert np.abs(a).max() > 0.1


@pytest.mark.parametrize("autodiff", FORMS)
@pytest.mark.parametrize(
    "wanted",
    [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)],
    ids=lambda w: "".join("xwb"[i] for i in w),
)
def test_only_what_is_asked_for(autodiff, wanted):
    """The passes in the traced gradient, counted; and the numbers of what is there."""
    case = CASES[0]
    args, dy = args_of(case)
    f = bind(case, autodiff=autodiff)

    def gradient(*args):
        return jax.grad(lambda *a: jnp.vdot(f(*a), dy), argnums=wanted)(*args)

    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    forced = bind(case, autodiff=autodiff, backend=native)
    lowered = jax.jit(
        jax.grad(lambda *a: jnp.vdot(forced(*a), dy), argnums=wanted)
    ).lower(*args)
    text = lowered.compile().as_text()
    calls = sorted(re.findall(r'custom_call_target="jax_transconv\.(\w+)\.v1"', text))
    expected = (["grad_input"] if 0 in wanted else []) + (
        ["grad_weight"] if 1 in wanted else []
    )
    assert calls == expected
    want = case.expected()
    for index, got in zip(wanted, gradient(*args), strict=True):
        name = ("dx", "dw", "db")[index]
        value = case.from_layout(got) if name == "dx" else got
        oracle.assert_close(value, want[name], case.dtype, what=name)


def test_weight_and_bias_in_one_pass():
    """The bias gradient costs no pass of its own: no reduction beside the call."""
    case = CASES[0]
    args, dy = args_of(case)
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    f = bind(case, backend=native)

    def gradient(x, w, b, dy):
        return jax.vjp(lambda w, b: f(x, w, b), w, b)[1](dy)

    text = jax.jit(gradient).lower(*args, dy).as_text()
    assert text.count("jax_transconv.grad_weight.v1") == 1
    assert "stablehlo.reduce" not in text


@pytest.mark.parametrize("autodiff", FORMS)
def test_unused_result_has_zero_gradients(autodiff):
    args, _ = args_of(CASES[0])
    f = bind(CASES[0], autodiff=autodiff)
    grads = jax.grad(lambda *a: (f(*a), 0.0 * a[0].sum())[1], argnums=(0, 1, 2))(*args)
    for g, a in zip(grads, args, strict=True):
        np.testing.assert_array_equal(g, np.zeros(a.shape))


@pytest.mark.parametrize("autodiff", FORMS)
def test_stopped_gradient(autodiff):
    case = CASES[0]
    args, dy = args_of(case)
    f = bind(case, autodiff=autodiff)

    def loss(x, w, b):
        return jnp.vdot(f(x, jax.lax.stop_gradient(w), b), dy)

    dx, dw, db = jax.grad(loss, argnums=(0, 1, 2))(*args)
    np.testing.assert_array_equal(dw, np.zeros(dw.shape))
    want = case.expected()
    oracle.assert_close(case.from_layout(dx), want["dx"], case.dtype)
    oracle.assert_close(db, want["db"], case.dtype)


@pytest.mark.parametrize("autodiff", FORMS)
def test_same_array_twice(autodiff, rng):
    """x and w from one array: both paths add up."""
    a = jnp.asarray(rng.standard_normal((2, 2, 3, 3)))
    f = functools.partial(conv_transpose2d, stride=2, autodiff=autodiff)
    check_grads(lambda a: f(a, a), (a,), order=2, modes=["rev"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("autodiff", FORMS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_unbatched(autodiff, layout, rng):
    shape = (2, 3, 4) if layout == "NCHW" else (3, 4, 2)
    x = jnp.asarray(rng.standard_normal(shape))
    w = jnp.asarray(rng.standard_normal((2, 3, 2, 3)))
    b = jnp.asarray(rng.standard_normal(3))
    f = functools.partial(conv_transpose2d, stride=2, layout=layout, autodiff=autodiff)
    check_grads(lambda *a: jnp.sin(f(*a)), (x, w, b), order=2, modes=["rev"])
    single = jax.grad(lambda *a: jnp.sin(f(*a)).sum(), (0, 1, 2))(x, w, b)
    batched = jax.grad(lambda *a: jnp.sin(f(*a)).sum(), (0, 1, 2))(x[None], w, b)
    for a, e in zip(single, (batched[0][0], *batched[1:]), strict=True):
        oracle.assert_same(a, e, "float64", 100)


@pytest.mark.parametrize("autodiff", FORMS)
def test_empty_batch(autodiff):
    """No example: gradients of the right shapes, and zero."""
    case = cases.Case("empty", 0, 4, 6, 3, 4, 3, 2, (2, 1), groups=2, dtype="float64")
    args, dy = args_of(case)
    y, pullback = jax.vjp(bind(case, autodiff=autodiff), *args)
    assert y.shape == case.out_shape
    for g, a in zip(pullback(dy), args, strict=True):
        np.testing.assert_array_equal(g, np.zeros(a.shape))


@pytest.mark.parametrize("policy", ["everything", "nothing", "dots"])
def test_remat(policy):
    case = CASES[1]
    args, dy = args_of(case)
    policies = {
        "everything": jax.checkpoint_policies.everything_saveable,
        "nothing": jax.checkpoint_policies.nothing_saveable,
        "dots": jax.checkpoint_policies.dots_saveable,
    }
    for autodiff in ("reverse", "both"):
        f = jax.checkpoint(
            lambda *a, autodiff=autodiff: jnp.sin(bind(case, autodiff=autodiff)(*a)),
            policy=policies[policy],
        )
        got = jax.jit(jax.grad(lambda *a, f=f: jnp.vdot(f(*a), dy), (0, 1, 2)))(*args)
        want = jax.grad(lambda *a: jnp.vdot(jnp.sin(bind(case)(*a)), dy), (0, 1, 2))(
            *args
        )
        for a, b in zip(got, want, strict=True):
            oracle.assert_same(a, b, case.dtype, case.reduction)


def test_scan_over_layers():
    """A stack of layers with scanned weights, and its gradient."""
    case = cases.Case("scan", 2, 3, 3, 4, 5, 3, 3, (1, 1), (1, 1), dtype="float64")
    members = [case.replace(name=f"scan{i}").data() for i in range(4)]
    ws = jnp.stack([jnp.asarray(m.weight) for m in members])
    bs = jnp.stack([jnp.asarray(m.bias) for m in members])
    x, dy = jnp.asarray(members[0].x), jnp.asarray(members[0].dy)

    def scanned(x, ws, bs):
        def step(x, wb):
            return jnp.tanh(bind(case)(x, *wb)), None

        return jnp.vdot(jax.lax.scan(step, x, (ws, bs))[0], dy)

    def unrolled(x, ws, bs):
        for w, b in zip(ws, bs, strict=True):
            x = jnp.tanh(bind(case)(x, w, b))
        return jnp.vdot(x, dy)

    got = jax.jit(jax.grad(scanned, (0, 1, 2)))(x, ws, bs)
    want = jax.grad(unrolled, (0, 1, 2))(x, ws, bs)
    for a, b in zip(got, want, strict=True):
        oracle.assert_same(a, b, case.dtype, case.reduction)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_keep_16_bits(dtype):
    case = cases.Case("narrow", 2, 3, 4, 5, 4, 3, 2, (2, 2), (1, 0), dtype=dtype)
    args, dy = args_of(case)
    for autodiff in ("reverse", "both"):
        _, pullback = jax.vjp(bind(case, autodiff=autodiff), *args)
        want = case.expected()
        for name, g in zip(("dx", "dw", "db"), pullback(dy), strict=True):
            assert g.dtype == jnp.dtype(dtype)
            oracle.assert_close(g, want[name], dtype, what=name)


@pytest.mark.parametrize("promotion", ["strict", "standard"])
def test_any_promotion_setting(promotion):
    """A user's strict promotion is not broken by what happens inside."""
    with jax.numpy_dtype_promotion(promotion):
        for dtype in cases.DTYPES:
            case = cases.Case(
                f"promotion-{promotion}-{dtype}", 1, 2, 3, 3, 2, 2, 3, dtype=dtype
            )
            args, dy = args_of(case)
            for autodiff in ("reverse", "both"):
                for backend in ("auto", "xla"):
                    f = bind(case, autodiff=autodiff, backend=backend)
                    y, pullback = jax.vjp(f, *args)
                    grads = pullback(dy)
                    assert {a.dtype for a in (y, *grads)} == {jnp.dtype(dtype)}
