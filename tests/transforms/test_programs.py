"""Inside the programs that people write: remat, control flow, rules of their own."""

import functools
import os
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.ad_checkpoint import checkpoint_name

from jax_transconv import conv_transpose2d, torch_compat

CASE = cases.Case("program", 2, 4, 6, 5, 4, 3, 2, (2, 1), (1, 0), groups=2)
NATIVE = "cuda" if jax.default_backend() == "gpu" else "cpu"
FORMS = ["reverse", "both"]


def bind(case=CASE, **changes):
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def operands(case=CASE):
    *args, dy = cases.put(case, case.data())
    return args, dy


def calls(function, *args) -> list[str]:
    """The native passes in a compiled program, sorted."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return sorted(re.findall(r'custom_call_target="jax_transconv\.(\w+)\.v1"', text))


def check_gradients(function, dy):
    """Gradients of <sin(f), dy> against the plain program's."""
    args, _ = operands()
    f = bind()
    want = jax.grad(lambda *a: jnp.vdot(jnp.sin(f(*a)), dy), (0, 1, 2))(*args)
    got = jax.jit(jax.grad(lambda *a: jnp.vdot(function(*a), dy), (0, 1, 2)))(*args)
    for g, e in zip(got, want, strict=True):
        oracle.assert_same(g, e, CASE.dtype, CASE.reduction)


@pytest.mark.parametrize("autodiff", FORMS)
@pytest.mark.parametrize(
    ("policy", "forwards"),
    [
        (jax.checkpoint_policies.nothing_saveable, 2),
        (jax.checkpoint_policies.save_only_these_names("up"), 1),
        (jax.checkpoint_policies.save_only_these_names("other"), 2),
        # What is named is not saved, but what it names is.
        (jax.checkpoint_policies.save_anything_except_these_names("up"), 1),
        (jax.checkpoint_policies.everything_saveable, 1),
    ],
    ids=["nothing", "name", "other_name", "except_name", "everything"],
)
def test_remat_policies(policy, forwards, autodiff):
    """A saved result is not computed again; one that is not saved is, once."""
    f = bind(backend=NATIVE, autodiff=autodiff)

    @functools.partial(jax.checkpoint, policy=policy)
    def block(x, w, b):
        return jnp.sin(checkpoint_name(f(x, w, b), "up"))

    args, dy = operands()
    check_gradients(block, dy)

    def step(*a):
        return jax.value_and_grad(lambda *a: jnp.vdot(block(*a), dy), (0, 1, 2))(*a)

    # XLA may find the repetition later and merge it: the traced program tells.
    text = str(jax.make_jaxpr(step)(*args))
    assert text.count("conv_transpose2d_grad_input[") == 1
    assert text.count("conv_transpose2d_forward[") == forwards


@pytest.mark.parametrize("autodiff", FORMS)
def test_cond_and_while(autodiff):
    """Branches of different problems, differentiated, and a loop that runs the op."""
    args, dy = operands()
    f = bind(autodiff=autodiff)

    def either(flag, x, w, b):
        return jax.lax.cond(
            flag, lambda *a: jnp.sin(f(*a)), lambda *a: f(*a, precision="high"), x, w, b
        )

    check_gradients(functools.partial(either, True), dy)
    y = jax.jit(either)(False, *args)
    oracle.assert_close(y, CASE.expected()["y"], CASE.dtype)

    same = cases.Case("loop", 1, 3, 3, 4, 5, 3, 3, (1, 1), (1, 1))
    (x, w, b), _ = operands(same)

    def body(state):
        i, x = state
        return i + 1, jnp.tanh(bind(same, autodiff=autodiff)(x, w, b))

    got = jax.jit(lambda x: jax.lax.while_loop(lambda s: s[0] < 3, body, (0, x)))(x)
    want = x
    for _ in range(3):
        want = jnp.tanh(bind(same)(want, w, b))
    oracle.assert_same(got[1], want, same.dtype, 10 * same.reduction)


@pytest.mark.parametrize("autodiff", FORMS)
def test_custom_vjp_around(autodiff):
    """A caller's rule that calls the op in both its parts."""
    f = bind(autodiff=autodiff)

    @jax.custom_vjp
    def outer(x, w, b):
        return jnp.sin(f(x, w, b))

    def forward(x, w, b):
        y, pullback = jax.vjp(f, x, w, b)
        return jnp.sin(y), (pullback, y)

    outer.defvjp(forward, lambda saved, dy: saved[0](dy * jnp.cos(saved[1])))
    _, dy = operands()
    check_gradients(outer, dy)


def test_custom_jvp_around():
    """A caller's rule for tangents, which JAX transposes: so it needs "both"."""
    f = bind(autodiff="both")
    args, dy = operands()

    @jax.custom_jvp
    def pushed(x, w, b):
        return jnp.sin(f(x, w, b))

    @pushed.defjvp
    def _(primals, tangents):
        x, w, b = primals
        tx, tw, tb = tangents
        y = f(x, w, b)
        dot = f(tx, w, tb) + f(x, tw)
        return jnp.sin(y), jnp.cos(y) * dot

    check_gradients(pushed, dy)
    _, got = jax.jvp(pushed, tuple(args), tuple(args))
    _, want = jax.jvp(lambda *a: jnp.sin(f(*a)), tuple(args), tuple(args))
    oracle.assert_same(got, want, CASE.dtype, CASE.reduction)


@pytest.mark.parametrize(
    ("wanted", "forwards"), [((0,), 2), ((1,), 2), ((2,), 1), ((0, 1), 3)]
)
def test_forward_mode_computes_only_what_is_asked_for(wanted, forwards):
    """One product for each operand with a tangent; a bias rides along."""
    args, _ = operands()
    f = bind(backend=NATIVE, autodiff="both")

    def push(*args):
        def of(*values):
            full = list(args)
            for i, v in zip(wanted, values, strict=True):
                full[i] = v
            return f(*full)

        picked = tuple(args[i] for i in wanted)
        return jax.jvp(of, picked, tuple(jnp.sin(a) for a in picked))

    assert calls(push, *args) == ["forward"] * forwards


def test_donation():
    """A training step that gives its parameters away: updated in place, right."""
    (x, w, b), dy = operands()
    f = bind()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(w, b, x, dy):
        _, pullback = jax.vjp(lambda w, b: f(x, w, b), w, b)
        dw, db = pullback(dy)
        return w - dw, b - db

    want = CASE.expected()
    data = CASE.data()
    new_w, new_b = step(w, b, x, dy)
    assert w.is_deleted()
    assert b.is_deleted()
    oracle.assert_close(data.weight - np.asarray(new_w), want["dw"], CASE.dtype)
    oracle.assert_close(data.bias - np.asarray(new_b), want["db"], CASE.dtype)


@pytest.mark.parametrize("autodiff", FORMS)
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_debug_nans(autodiff, jit):
    """A nan raises where it is made, and numbers pass."""
    (x, w, b), _ = operands()
    f = jit(bind(autodiff=autodiff))
    with jax.debug_nans(True):
        oracle.assert_close(f(x, w, b), CASE.expected()["y"], CASE.dtype)
        with pytest.raises(FloatingPointError, match="nan"):
            # Infinities of both signs meet in one sum.
            f(x.at[:, 0].set(jnp.inf).at[:, 1].set(-jnp.inf), jnp.abs(w), b)


@pytest.mark.parametrize("autodiff", FORMS)
def test_shapes_without_work(autodiff):
    """eval_shape of the result and of the gradients."""
    args, dy = operands()
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*args, dy)]
    f = bind(autodiff=autodiff)
    y, pullback = jax.eval_shape(lambda *a: jax.vjp(f, *a), *structs[:3])
    assert (y.shape, y.dtype) == (dy.shape, dy.dtype)
    grads = jax.eval_shape(lambda x, w, b, dy: jax.vjp(f, x, w, b)[1](dy), *structs)
    assert [g.shape for g in grads] == [a.shape for a in args]
    del pullback


def test_ahead_of_time():
    """Lowered from shapes, compiled once, called with arrays."""
    args, _ = operands()
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
    compiled = jax.jit(bind()).lower(*structs).compile()
    oracle.assert_close(compiled(*args), CASE.expected()["y"], CASE.dtype)
    with pytest.raises(TypeError, match=r"compiled with .* called with"):
        compiled(args[0][:1], *args[1:])


def test_x64_off():
    """float64 from numpy is float32 then, as for any JAX function."""
    data = CASE.replace(dtype="float64").data()
    with jax.enable_x64(False):
        y = bind()(data.x, data.weight, data.bias)
        assert y.dtype == jnp.float32
    y = bind()(data.x, data.weight, data.bias)
    assert y.dtype == jnp.float64


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_default_matmul_precision(jit):
    """The context decides, also for a function that was traced under another."""
    args, _ = operands()

    def f(x, w, b):
        return conv_transpose2d(x, w, b, stride=2, groups=2)

    f = jit(f)
    for word, name in (("float32", "HIGHEST"), (None, "DEFAULT"), ("high", "HIGH")):
        with jax.default_matmul_precision(word):
            text = str(jax.make_jaxpr(f)(*args))
        assert f"precision=<Precision.{name}:" in text


@pytest.mark.parametrize(
    ("in_axes", "count"),
    [((0, None, None), 1), ((None, 0, None), 1), ((0, 0, 0), 1)],
    ids=["x", "w", "all"],
)
@pytest.mark.parametrize("order", ["vmap_of_grad", "grad_of_vmap"])
def test_one_launch_a_pass(in_axes, count, order):
    """Per-example gradients, and the gradient of a mapped loss: no loop in either."""
    members = [CASE.replace(name=f"launch{i}").data() for i in range(3)]
    fields = ("x", "weight", "bias")
    args = [
        jnp.stack([jnp.asarray(getattr(m, name)) for m in members])
        if axis == 0
        else jnp.asarray(getattr(members[0], name))
        for name, axis in zip(fields, in_axes, strict=True)
    ]
    f = bind(backend=NATIVE)

    def loss(x, w, b):
        return jnp.sin(f(x, w, b)).sum()

    if order == "vmap_of_grad":
        gradient = jax.vmap(jax.grad(loss, (0, 1, 2)), in_axes)
    else:
        gradient = jax.grad(lambda *a: jax.vmap(loss, in_axes)(*a).sum(), (0, 1, 2))
    found = calls(gradient, *args)
    assert found == sorted(["forward", "grad_input", "grad_weight"] * count)
    text = jax.jit(gradient).lower(*args).as_text()
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("mapped", ["w", "xw"])
def test_more_members_than_a_grid_axis_has(mapped):
    """65537 weights, each of its own: a CUDA grid's y and z end at 65535."""
    count = 65537
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 1, 1, 2, 1)).astype("float32")
    w = rng.standard_normal((count, 1, 1, 2, 1)).astype("float32")
    if mapped == "w":
        x = x[0]
    f = functools.partial(conv_transpose2d, precision="highest")
    axes = (0 if mapped == "xw" else None, 0)

    @jax.jit
    def passes(x, w):
        y, pullback = jax.vjp(lambda x, w: jax.vmap(f, axes)(x, w), x, w)
        return y, *pullback(jnp.ones_like(y))

    y, dx, dw = passes(x, w)
    xs = np.broadcast_to(x, w.shape).astype("float64")
    a, b = xs[..., 0, 0], xs[..., 1, 0]
    c, d = w[..., 0, 0].astype("float64"), w[..., 1, 0].astype("float64")
    want = np.stack([a * c, a * d + b * c, b * d], axis=-1)[..., None]
    oracle.assert_same(y, want, "float32", 4)
    oracle.assert_same(
        dw, np.broadcast_to((a + b)[..., None, None], dw.shape), "float32", 4
    )
    each = np.broadcast_to((c + d)[..., None, None], w.shape)
    if mapped == "w":
        each = each.sum(axis=0)
    oracle.assert_same(dx, each, "float32", count if mapped == "w" else 4)


def test_sizes_that_do_not_agree_under_vmap():
    (x, w, b), _ = operands()
    with pytest.raises(ValueError, match="inconsistent sizes"):
        jax.vmap(bind())(jnp.stack([x] * 3), jnp.stack([w] * 2), jnp.stack([b] * 3))


# --- pickling ---


def test_pickled_torch_layer():
    layer = torch_compat.ConvTranspose2d(4, 6, 3, stride=2, groups=2, seed=0)
    copy = pickle.loads(pickle.dumps(layer))
    x = CASE.data().x
    np.testing.assert_array_equal(copy(x), layer(x))
    assert repr(copy) == repr(layer)


# --- a fresh process ---

_CACHED = """
import jax, sys
import numpy as np

hits = []
jax.monitoring.register_event_listener(
    lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None
)
import jax_transconv

x = np.ones((8, 4, 8, 4), np.float32)
w = np.ones((4, 3, 4, 4), np.float32)

def f(x, w):
    up = lambda w: jax_transconv.conv_transpose2d(x, w, stride=2, padding=1)
    return jax.grad(lambda w: (up(w) ** 2).sum())(w)

one = jax.jit(f)(x, w)
print(len(hits), float(np.asarray(one).sum()))
"""


def test_persistent_compilation_cache(tmp_path):
    """A second process does not compile again what is on one device."""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_CACHED)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=environment,
            cwd=pathlib.Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert outputs[0][1] == outputs[1][1]
    assert int(outputs[0][0]) == 0
    assert int(outputs[1][0]) >= 1
