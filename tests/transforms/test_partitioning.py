"""Sharded operands under jit: the right numbers, and only the collectives they need.

Every test reads the compiled program: a pass that is cut right exchanges what its
factor costs (nothing, one sum, two halos) and never gathers an image.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_transconv import conv_transpose1d, conv_transpose2d, explain

DENSE = cases.Case("sharded", 8, 8, 4, 16, 8, 4, 4, (2, 2), (1, 1))
GROUPS = cases.Case("sharded_groups", 4, 8, 16, 6, 5, 3, 3, (2, 2), (1, 1), groups=4)
DEPTHWISE = GROUPS.replace(name="sharded_depthwise", cout=8, groups=8)
MULTIPLIER = GROUPS.replace(name="sharded_multiplier", cout=16, groups=8)
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)


def make_mesh(kind=AxisType.Auto):
    # On the CPU devices, which there are eight of everywhere.
    return jax.make_mesh(
        (4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:8]
    )


def collectives(compiled) -> dict[str, int]:
    """How many of each collective a compiled program has; those without are absent."""
    text = compiled.as_text()
    found = {
        name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES
    }
    return {name: n for name, n in found.items() if n}


def gathered(compiled) -> list[int]:
    """Elements of the result of every all-gather."""
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather", compiled.as_text())
    return [int(np.prod([int(n) for n in s.split(",") if n])) for s in shapes]


WHOLE = P()


def place(case, mesh, x=WHOLE, w=WHOLE, b=WHOLE, dy=WHOLE):
    """The operands of a case, cut as the specs say; in NCHW."""
    data = case.data()
    pairs = ((data.x, x), (data.weight, w), (data.bias, b), (data.dy, dy))
    return tuple(jax.device_put(a, NamedSharding(mesh, s)) for a, s in pairs)


def passes(case, **changes):
    """The result and the three gradients, as one function."""
    f = functools.partial(conv_transpose2d, **{**case.kwargs, **changes})

    def run(x, w, b, dy):
        y, pullback = jax.vjp(f, x, w, b)
        return y, *pullback(dy)

    return run


def check(case, results, names=("y", "dx", "dw", "db")):
    want = case.expected()
    for name, value in zip(names, results, strict=True):
        if name in ("y", "dx"):
            value = case.from_layout(value)
        oracle.assert_close(value, want[name], case.dtype, what=name)


# name: (case, specs of the operands, spec of y, collectives of forward, of all passes)
CUTS = {
    "batch": (
        DENSE,
        {"x": P("a"), "dy": P("a")},
        P("a"),
        {},
        {"all-reduce"},
    ),
    "out_channels": (
        DENSE,
        {"w": P(None, "a"), "b": P("a"), "dy": P(None, "a")},
        P(None, "a"),
        {},
        {"all-reduce"},
    ),
    "batch_and_out_channels": (
        DENSE,
        {"x": P("a"), "w": P(None, "b"), "b": P("b"), "dy": P("a", "b")},
        P("a", "b"),
        {},
        {"all-reduce"},
    ),
    "in_channels": (
        DENSE,
        {"x": P(None, "a"), "w": P("a")},
        P(),
        {"all-reduce": 1},
        {"all-reduce"},
    ),
    "two_axes_at_once": (
        DENSE,
        {"x": P(("a", "b")), "dy": P(("a", "b"))},
        P(("a", "b")),
        {},
        {"all-reduce"},
    ),
    "groups": (
        GROUPS,
        {"x": P(None, "a"), "w": P("a"), "b": P("a"), "dy": P(None, "a")},
        P(None, "a"),
        {},
        set(),
    ),
    "batch_and_groups": (
        GROUPS,
        {"x": P("b", "a"), "w": P("a"), "b": P("a"), "dy": P("b", "a")},
        P("b", "a"),
        {},
        {"all-reduce"},
    ),
    "depthwise": (
        DEPTHWISE,
        {"x": P(None, "a"), "w": P("a"), "b": P("a"), "dy": P(None, "a")},
        P(None, "a"),
        {},
        set(),
    ),
    "multiplier": (
        MULTIPLIER,
        {"x": P(None, "b"), "w": P("b"), "b": P("b"), "dy": P(None, "b")},
        P(None, "b"),
        {},
        set(),
    ),
    "height": (
        DENSE,
        {"x": P(None, None, "a"), "dy": P(None, None, "a")},
        P(None, None, "a"),
        {"collective-permute": 2},
        {"all-reduce", "collective-permute"},
    ),
    "height_and_width": (
        DENSE,
        {"x": P(None, None, "a", "b"), "dy": P(None, None, "a", "b")},
        P(None, None, "a", "b"),
        {"collective-permute": 4},
        {"all-reduce", "collective-permute"},
    ),
    "batch_and_height": (
        DENSE,
        {"x": P("b", None, "a"), "dy": P("b", None, "a")},
        P("b", None, "a"),
        {"collective-permute": 2},
        {"all-reduce", "collective-permute"},
    ),
    "height_over_eight": (
        DENSE,
        {"x": P(None, None, ("a", "b")), "dy": P(None, None, ("a", "b"))},
        P(None, None, ("a", "b")),
        {"collective-permute": 2},
        {"all-reduce", "collective-permute"},
    ),
    "height_and_in_channels": (
        DENSE,
        {"x": P(None, "b", "a"), "w": P("b"), "dy": P(None, None, "a")},
        P(None, None, "a"),
        {"all-reduce": 1, "collective-permute": 2},
        {"all-reduce", "collective-permute"},
    ),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize(
    ("backend", "autodiff"), [("auto", "reverse"), ("xla", "both")]
)
def test_cut(name, backend, autodiff):
    """Shardings propagate, nothing is gathered, and the sums and halos are there."""
    case, specs, y_spec, forward, kinds = CUTS[name]
    mesh = make_mesh()
    args = place(case, mesh, **specs)
    f = functools.partial(
        conv_transpose2d, **case.kwargs, backend=backend, autodiff=autodiff
    )
    compiled = jax.jit(f).lower(*args[:3]).compile()
    assert collectives(compiled) == forward
    y = compiled(*args[:3])
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, y_spec), 4)
    check(case, [y], ["y"])

    compiled = jax.jit(passes(case, backend=backend, autodiff=autodiff))
    compiled = compiled.lower(*args).compile()
    assert set(collectives(compiled)) == kinds
    results = compiled(*args)
    for result, like in zip(results[1:], args, strict=False):
        assert result.sharding.is_equivalent_to(like.sharding, like.ndim)
    check(case, results)


SPATIAL = [
    cases.Case("k4s2p1", 2, 3, 2, 16, 8, 4, 4, (2, 2), (1, 1)),
    cases.Case("k3s2p1op1", 2, 3, 2, 16, 8, 3, 3, (2, 2), (1, 1), (1, 1)),
    cases.Case("k2s2", 2, 3, 2, 16, 8, 2, 2, (2, 2)),
    cases.Case("k3s1p1", 2, 3, 2, 16, 8, 3, 3, (1, 1), (1, 1)),
    cases.Case("k9s3p4op2", 2, 3, 2, 16, 8, 9, 9, (3, 3), (4, 4), (2, 2)),
    cases.Case("k1s2", 2, 3, 2, 16, 8, 1, 1, (2, 2), (0, 0), (1, 1)),
    cases.Case("dilated", 1, 2, 3, 24, 8, 3, 3, (2, 1), (2, 2), (1, 0), (2, 2)),
    cases.Case("lopsided", 2, 3, 2, 16, 8, 5, 3, (2, 2), ((0, 3), (-1, 2))),
    cases.Case("grows_low", 2, 3, 2, 16, 8, 4, 4, (2, 2), ((-2, 4), (4, -2))),
    cases.Case("groups", 2, 4, 6, 16, 8, 4, 4, (2, 2), (1, 1), groups=2),
    cases.Case("nhwc", 2, 3, 2, 16, 8, 4, 4, (2, 2), (1, 1), layout="NHWC"),
    cases.Case("bfloat16", 2, 3, 2, 16, 8, 4, 4, (2, 2), (1, 1), dtype="bfloat16"),
]


@pytest.mark.parametrize("case", SPATIAL, ids=str)
def test_halos(case):
    """Every kind of crop: exact against the oracle, and no image is gathered."""
    mesh = make_mesh()
    spec = P(None, "a", "b") if case.layout == "NHWC" else P(None, None, "a", "b")
    placed = [NamedSharding(mesh, s) for s in (spec, P(), P(), spec)]
    args = [
        jax.device_put(a, s)
        for a, s in zip(cases.put(case, case.data()), placed, strict=True)
    ]
    compiled = jax.jit(passes(case)).lower(*args).compile()
    assert "all-gather" not in collectives(compiled)
    results = compiled(*args)
    for result in results[:2]:
        assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)
    if case.dtype == "float32":
        check(case, results)
    else:  # each shard rounds its part of the sums over the image
        check(case, results[:2], ["y", "dx"])
        want = case.expected()
        for name, value in zip(("dw", "db"), results[2:], strict=True):
            level = np.sqrt(np.mean(want[name].value ** 2))
            error = np.abs(oracle.as_float64(value) - want[name].value).max()
            assert error < 8 * 2.0**-8 * 4 * level, name


def test_halos_are_as_wide_as_the_kernel_reaches():
    """What travels is a row or two, not the image."""
    case = SPATIAL[0].replace(name="narrow", h=64, w=32)
    args = place(case, make_mesh(), x=P(None, None, "a"))
    f = functools.partial(conv_transpose2d, **case.kwargs)
    text = jax.jit(f).lower(*args[:3]).compile().as_text()
    sent = re.findall(r"= f32\[([\d,]+)\]\S* collective-permute", text)
    assert sent == [f"{case.n},{case.cin},1,{case.w}"] * 2


FALLBACKS = {
    "shard smaller than its halo": (
        SPATIAL[0].replace(name="tiny", h=4, kh=8, padding=(3, 1)),
        P(None, None, "a"),
        r"height over a: gathered, a shard of 1 is smaller than its halo of 2",
    ),
    "output is no multiple": (
        SPATIAL[0].replace(name="valid", padding=(0, 0)),
        P(None, None, "a"),
        r"height over a: gathered, an output of 34 is not the stride 2 times 16",
    ),
    "in groups": (
        GROUPS.replace(name="split_groups", groups=2),
        P(None, "a"),
        r"groups over a: gathered, 4 devices do not divide 2",
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_cannot_be_cut_is_gathered(name):
    """Still right, and `explain` says why."""
    case, spec, reason = FALLBACKS[name]
    args = place(case, make_mesh(), x=spec)
    compiled = jax.jit(passes(case)).lower(*args).compile()
    check(case, compiled(*args))
    assert max(gathered(compiled)) == args[0].size
    explanation = explain(*args[:3], **case.kwargs)
    (cut,) = explanation.cuts
    assert re.fullmatch(reason, cut)
    assert cut in str(explanation)


def test_explain_tells_the_cut():
    args = place(DENSE, make_mesh(), x=P("b", None, "a"))
    explanation = explain(*args[:3], **DENSE.kwargs)
    assert explanation.cuts == ("batch over b", "height over a: halos of 1 and 1")
    args = place(DENSE, make_mesh(), x=P(None, "a"), w=P("a", "b"))
    cuts = explain(*args[:3], **DENSE.kwargs).cuts
    assert cuts == ("input channels over a: summed", "output channels over b")
    args_in_groups = place(GROUPS, make_mesh(), w=P(None, "a"))
    (refusal,) = explain(*args_in_groups[:3], **GROUPS.kwargs).cuts
    assert refusal == (
        "output channels over a: gathered, channels are cut in whole groups"
    )
    args_in_kernel = place(DENSE, make_mesh(), w=P(None, None, "b"))
    (refusal,) = explain(*args_in_kernel[:3]).cuts
    assert refusal == "kernel height over b: gathered, a kernel is never cut"
    x = args[0][0]  # unbatched
    assert explain(x, *args[1:3], **DENSE.kwargs).cuts == cuts
    assert explain(*(np.asarray(a) for a in args[:3]), **DENSE.kwargs).cuts == ()


def test_axes_that_do_not_divide():
    """A sharding constraint of six examples over four devices."""
    case = DENSE.replace(name="six", n=6)
    mesh = make_mesh()
    args = place(case, mesh)

    @jax.jit
    def f(x, w, b):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("a")))
        return conv_transpose2d(x, w, b, **case.kwargs)

    check(case, [f(*args[:3])], ["y"])


def test_the_result_may_decide():
    """Operands are whole, the result is asked for in parts."""
    mesh = make_mesh()
    args = place(DENSE, mesh)
    out = NamedSharding(mesh, P("a", "b"))
    f = functools.partial(conv_transpose2d, **DENSE.kwargs)
    compiled = jax.jit(f, out_shardings=out).lower(*args[:3]).compile()
    assert collectives(compiled) == {}
    y = compiled(*args[:3])
    assert y.sharding.is_equivalent_to(out, 4)
    check(DENSE, [y], ["y"])


def test_eager():
    """Outside jit, too, the result stays in parts."""
    args = place(DENSE, make_mesh(), x=P("a"), w=P(None, "b"), dy=P("a", "b"))
    results = passes(DENSE)(*args)
    assert results[0].sharding.is_equivalent_to(args[3].sharding, 4)
    check(DENSE, results)


def test_forward_mode():
    mesh = make_mesh()
    spec = P("b", None, "a")
    x, w, b, _ = place(DENSE, mesh, x=spec)
    f = functools.partial(conv_transpose2d, **DENSE.kwargs, autodiff="both")
    push = jax.jit(lambda x, w, b: jax.jvp(f, (x, w, b), (x, w, b)))
    compiled = push.lower(x, w, b).compile()
    assert set(collectives(compiled)) == {"collective-permute"}
    y, tangent = compiled(x, w, b)
    oracle.assert_same(
        tangent, 2 * y - np.asarray(b)[None, :, None, None], "float32", 1000
    )
    assert tangent.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)


def test_vmap():
    """The mapped axis joins the batch, and the shards stay where they are."""
    mesh = make_mesh()
    members = [DENSE.replace(name=f"mapped{i}") for i in range(4)]
    w, b = place(members[0], mesh)[1:3]
    xs = jnp.stack([jnp.asarray(m.data().x) for m in members])
    xs = jax.device_put(xs, NamedSharding(mesh, P("a")))
    f = functools.partial(conv_transpose2d, **DENSE.kwargs)
    compiled = jax.jit(jax.vmap(f, (0, None, None))).lower(xs, w, b).compile()
    assert collectives(compiled) == {}
    data = members[0].data()
    for y, member in zip(compiled(xs, w, b), members, strict=True):
        one = cases.Data(member.data().x, data.weight, data.bias, data.dy)
        oracle.assert_close(y, DENSE.expected(one)["y"], DENSE.dtype)


def test_a_training_step():
    """Two layers, data parallel and cut in space: the parameters' sums, and halos."""
    first = cases.Case("up1", 4, 6, 8, 16, 8, 4, 4, (2, 2), (1, 1))
    second = cases.Case("up2", 4, 8, 3, 32, 16, 4, 4, (2, 2), (1, 1))
    a, c = first.data(), second.data()
    params = [jnp.asarray(v) for v in (a.weight, a.bias, c.weight, c.bias)]
    x, target = jnp.asarray(a.x), jnp.asarray(c.dy)

    def loss(params, x, target):
        w1, b1, w2, b2 = params
        h = jnp.tanh(conv_transpose2d(x, w1, b1, **first.kwargs))
        y = conv_transpose2d(h, w2, b2, **second.kwargs)
        return ((y - target) ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    want = step(params, x, target)
    mesh = make_mesh()
    for spec in (P("a"), P("b", None, "a")):
        placed = jax.device_put(params, NamedSharding(mesh, P()))
        images = [jax.device_put(v, NamedSharding(mesh, spec)) for v in (x, target)]
        compiled = step.lower(placed, *images).compile()
        spatial = {"collective-permute"} if "a" in spec[1:] else set()
        assert set(collectives(compiled)) == {"all-reduce"} | spatial
        got = compiled(placed, *images)
        for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            oracle.assert_same(g, e, "float32", 4000)


SAME = cases.Case("same_size", 8, 4, 4, 16, 8, 3, 3, (1, 1), (1, 1))


def _scanned(f):
    def run(x, w, b):
        body = lambda h, _: (jnp.tanh(f(h, w, b)), None)  # noqa: E731
        return jax.lax.scan(body, x, None, length=2)[0]

    return run


def _branched(f):
    def run(x, w, b):
        return jax.lax.cond(w.sum() < np.inf, f, lambda x, w, b: x, x, w, b)

    return run


def _looped(f):
    """Forward only: JAX has no reverse mode of a while loop."""

    def run(x, w, b):
        body = lambda i, h: jnp.tanh(f(h, w, b))  # noqa: E731
        return jax.lax.fori_loop(0, 2, body, x)

    return run


INSIDE = {
    "scan": _scanned,
    "cond": _branched,
    "remat": jax.checkpoint,
    "fori_loop": _looped,
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("spec", [P("a"), P(None, None, "a")], ids=["batch", "height"])
def test_inside_of_control_flow(name, spec):
    """A body is cut as the whole program would be: nothing is gathered."""
    program = INSIDE[name](functools.partial(conv_transpose2d, **SAME.kwargs))

    def run(x, w, b, dy):
        y, pullback = jax.vjp(program, x, w, b)
        return y, *pullback(dy)

    args = place(SAME, make_mesh(), x=spec, dy=spec)
    plain = tuple(np.asarray(a) for a in args)
    compiled = jax.jit(run).lower(*args).compile()
    halos = {"collective-permute"} if len(spec) > 1 else set()
    assert set(collectives(compiled)) == {"all-reduce"} | halos
    results = compiled(*args)
    for result in results[:2]:
        assert result.sharding.is_equivalent_to(args[0].sharding, 4)
    for got, want in zip(results, jax.jit(run)(*plain), strict=True):
        oracle.assert_same(got, want, SAME.dtype, 10 * SAME.reduction)


@pytest.mark.parametrize("mapped", ["w", "xw"])
def test_vmap_over_weights(mapped):
    """The mapped axis joins the channels or is the groups: either may be cut."""
    mesh = make_mesh()
    members = [DENSE.replace(name=f"weights{i}").data() for i in range(4)]
    b = jnp.asarray(members[0].bias)
    w = jnp.stack([jnp.asarray(m.weight) for m in members])
    x = jnp.stack([jnp.asarray(m.x) for m in members])
    x, axis = (x, 0) if "x" in mapped else (x[0], None)
    args = [jax.device_put(v, NamedSharding(mesh, P("a"))) for v in (x, w)]
    args.append(jax.device_put(b, NamedSharding(mesh, P())))
    if axis is None:  # its batch over the other axis of the mesh
        args[0] = jax.device_put(x, NamedSharding(mesh, P("b")))
    f = functools.partial(conv_transpose2d, **DENSE.kwargs)
    compiled = jax.jit(jax.vmap(f, (axis, 0, None))).lower(*args).compile()
    assert not {"all-gather", "all-to-all"} & set(collectives(compiled))
    for i, y in enumerate(compiled(*args)):
        one = members[i if "x" in mapped else 0].x
        data = cases.Data(one, members[i].weight, members[0].bias, None)
        want = oracle.forward(data.x, data.weight, data.bias, **DENSE.geometry)
        oracle.assert_same(y, want, DENSE.dtype, DENSE.reduction)


def test_fewer_axes():
    """An image without a batch, and one-dimensional signals."""
    mesh, here = make_mesh(), jax.devices("cpu")[0]
    data = DENSE.data()
    f = functools.partial(conv_transpose2d, **DENSE.kwargs)
    x = jax.device_put(data.x[0], NamedSharding(mesh, P(None, "a")))
    compiled = jax.jit(f).lower(x, data.weight, data.bias).compile()
    assert set(collectives(compiled)) == {"collective-permute"}
    want = f(*jax.device_put((data.x[:1], data.weight, data.bias), here))[0]
    y = compiled(x, data.weight, data.bias)
    oracle.assert_same(y, want, DENSE.dtype, DENSE.reduction)

    g = functools.partial(conv_transpose1d, stride=2, padding=1)
    signal, taps = data.x[..., 0], data.weight[..., 0]
    for spec, kinds in ((P("a"), set()), (P(None, None, "a"), {"collective-permute"})):
        x = jax.device_put(signal, NamedSharding(mesh, spec))
        compiled = jax.jit(g).lower(x, taps, data.bias).compile()
        assert set(collectives(compiled)) == kinds
        want = g(*jax.device_put((signal, taps, data.bias), here))
        oracle.assert_same(
            compiled(x, taps, data.bias), want, DENSE.dtype, DENSE.reduction
        )


def test_an_axis_of_one_device():
    """A mesh as programs have it that also run on one: nothing is exchanged."""
    devices = jax.devices("cpu")[:2]
    mesh = jax.make_mesh((1, 2), ("a", "b"), (AxisType.Auto,) * 2, devices=devices)
    args = place(DENSE, mesh, x=P("b", None, "a"), dy=P("b", None, "a"))
    compiled = jax.jit(passes(DENSE)).lower(*args).compile()
    assert set(collectives(compiled)) == {"all-reduce"}
    check(DENSE, compiled(*args))
    assert explain(*args[:3], **DENSE.kwargs).cuts == ("batch over b",)


_CACHE = """
import sys
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jax_transconv import conv_transpose2d

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
mesh = jax.make_mesh(
    (4,), ("a",), (AxisType.Auto,), devices=jax.devices("cpu")[:4]
)
rng = np.random.default_rng(0)
x = rng.standard_normal((8, 4, 8, 8)).astype("float32")
w = rng.standard_normal((4, 3, 4, 4)).astype("float32")
sharded = jax.device_put(x, NamedSharding(mesh, P("a")))
w = jax.device_put(w, NamedSharding(mesh, P()))
for lo, hi in ((1, 1), (0, 2), (2, 0)):
    def f(x, w):
        return conv_transpose2d(x, w, stride=2, padding=((lo, hi), (1, 1)))
    np.testing.assert_allclose(jax.jit(f)(sharded, w), f(x, np.asarray(w)), atol=1e-2)
"""


def test_the_key_of_the_compilation_cache_knows_the_geometry(tmp_path):
    """Even where JAX is told to drop our callback from it: shapes alone do not tell."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, "-c", _CACHE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
        cwd=pathlib.Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir())


# --- explicit meshes ---


EXPLICIT = {name: CUTS[name] for name in CUTS if name != "two_axes_at_once"}


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_mesh(name):
    """The type of y says how it is cut; gradients have the types of their operands."""
    case, specs, y_spec, forward, kinds = EXPLICIT[name]
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = place(case, mesh, **specs)
        f = functools.partial(conv_transpose2d, **case.kwargs)
        compiled = jax.jit(f).lower(*args[:3]).compile()
        assert collectives(compiled) == forward
        for y in (f(*args[:3]), jax.jit(f)(*args[:3])):
            spec = jax.typeof(y).sharding.spec
            assert NamedSharding(mesh, spec).is_equivalent_to(
                NamedSharding(mesh, y_spec), 4
            )
            check(case, [y], ["y"])
        # A cotangent must have the type of y.
        args = (*args[:3], jax.sharding.reshard(args[3], spec))
        compiled = jax.jit(passes(case)).lower(*args).compile()
        assert set(collectives(compiled)) == kinds
        results = jax.jit(passes(case))(*args)
        for result, like in zip(results[1:], args, strict=False):
            assert jax.typeof(result) == jax.typeof(like)
        check(case, results)


def test_explicit_mesh_without_its_context():
    """Arrays bring their mesh with them."""
    mesh = make_mesh(AxisType.Explicit)
    args = place(DENSE, mesh, x=P("a"))
    y = conv_transpose2d(*args[:3], **DENSE.kwargs)
    assert jax.typeof(y).sharding.spec == P("a", None, None, None)
    check(DENSE, [y], ["y"])


def test_a_mesh_axis_that_two_factors_ask_for():
    """The batch comes first; the channels are gathered then."""
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = place(DENSE, mesh, x=P("a"), w=P(None, "a"))
        y = conv_transpose2d(*args[:3], **DENSE.kwargs)
        assert jax.typeof(y).sharding.spec == P("a", None, None, None)
        check(DENSE, [y], ["y"])
