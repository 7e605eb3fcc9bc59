"""Inside `jax.shard_map`, with its checks on: types, sums and gradients."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_transconv import conv_transpose2d

CASE = cases.Case("manual", 8, 8, 4, 6, 5, 4, 4, (2, 2), (1, 1))
GROUPS = cases.Case("manual_groups", 4, 8, 16, 6, 5, 3, 3, (2, 2), (1, 1), groups=4)


def make_mesh(kind=AxisType.Auto):
    return jax.make_mesh(
        (4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:8]
    )


def bind(case, **changes):
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def operands(case):
    data = case.data()
    return data.x, data.weight, data.bias, data.dy


def check(case, results, names=("y", "dx", "dw", "db")):
    want = case.expected()
    for name, value in zip(names, results, strict=True):
        oracle.assert_close(value, want[name], case.dtype, what=name)


def passes(f):
    def run(x, w, b, dy):
        y, pullback = jax.vjp(f, x, w, b)
        return y, *pullback(dy)

    return run


# name: (case, specs of x, weight, bias, and y, the mesh axis that y is summed over)
CUTS = {
    "batch": (CASE, (P("a"), P(), P()), P("a"), None),
    "out_channels": (CASE, (P(), P(None, "a"), P("a")), P(None, "a"), None),
    "both": (CASE, (P("a"), P(None, "b"), P("b")), P("a", "b"), None),
    "in_channels": (CASE, (P(None, "a"), P("a"), P()), P(), "a"),
    "groups": (GROUPS, (P(None, "a"), P("a"), P("a")), P(None, "a"), None),
}


def cut(name, autodiff, mesh, **options):
    """The op of one cut under shard_map, on whole arrays."""
    case, specs, y_spec, summed = CUTS[name]
    changes = {"groups": case.groups // 4} if name == "groups" else {}
    f = bind(case, autodiff=autodiff, **changes)

    def local(x, w, b):
        if summed is None:
            return f(x, w, b)
        return jax.lax.psum(f(x, w), summed) + b[None, :, None, None]

    return case, jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=y_spec, **options
    )


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("autodiff", ["reverse", "both"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_of_shard_map(name, autodiff, check_vma):
    case, f = cut(name, autodiff, make_mesh(), check_vma=check_vma)
    check(case, jax.jit(passes(f))(*operands(case)))


@pytest.mark.parametrize("autodiff", ["reverse", "both"])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_gradient_inside(autodiff, jit):
    """A replicated weight: its gradient is summed over the axis of the batch."""
    f = bind(CASE, autodiff=autodiff)
    shared = (P("a"), P(), P(), P("a"))

    def step(x, w, b, dy):
        return jax.grad(lambda x, w, b: jnp.vdot(f(x, w, b), dy), (0, 1, 2))(x, w, b)

    run = jax.shard_map(
        step, mesh=make_mesh(), in_specs=shared, out_specs=(P("a"), P(), P())
    )
    check(CASE, jit(run)(*operands(CASE)), ("dx", "dw", "db"))


def test_gradient_inside_sums_once():
    """One all-reduce a parameter, and the image stays where it is."""
    f = bind(CASE)

    def step(x, w, b, dy):
        return jax.vjp(lambda w, b: f(x, w, b), w, b)[1](dy)

    run = jax.shard_map(
        step, mesh=make_mesh(), in_specs=(P("a"), P(), P(), P("a")), out_specs=P()
    )
    text = jax.jit(run).lower(*operands(CASE)).compile().as_text()
    summed = re.findall(r"= (.*?) all-reduce(?:-start)?\(", text)
    assert sum(len(re.findall(r"\w+\[", s)) for s in summed) == 2
    assert not re.findall(r" (all-gather|all-to-all|collective-permute)\(", text)


@pytest.mark.parametrize("autodiff", ["reverse", "both"])
def test_second_order(autodiff):
    """The gradient of a gradient, through the primitives' own rules."""
    mesh = make_mesh()
    x, w, b, _ = operands(CASE)

    def inner(f):
        def of(x, w, b):
            grads = jax.grad(lambda x, w, b: jnp.sin(f(x, w, b)).sum(), (0, 1))(x, w, b)
            return sum((g**2).sum() for g in grads)

        return jax.grad(of, (0, 1, 2))

    _, sharded = cut("batch", autodiff, mesh)
    got = jax.jit(inner(sharded))(x, w, b)
    want = jax.jit(inner(bind(CASE)))(x, w, b)
    for g, e in zip(got, want, strict=True):
        oracle.assert_same(g, e, CASE.dtype, 10 * CASE.reduction)


def test_forward_mode():
    mesh = make_mesh()
    x, w, b, _ = operands(CASE)
    _, f = cut("batch", "both", mesh)
    y, tangent = jax.jit(lambda *a: jax.jvp(f, a, a))(x, w, b)
    oracle.assert_same(
        tangent, 2 * y - b[None, :, None, None], CASE.dtype, CASE.reduction
    )


@pytest.mark.parametrize("autodiff", ["reverse", "both"])
def test_scan_inside(autodiff):
    """The carry of a scan keeps its type: results vary as operands do."""
    case = cases.Case("scanned", 8, 3, 3, 5, 4, 3, 3, (1, 1), (1, 1))
    f = bind(case, autodiff=autodiff)
    x, w, b, dy = operands(case)

    def stack(x, w, b):
        body = lambda h, _: (jnp.tanh(f(h, w, b)), None)  # noqa: E731
        return jax.lax.scan(body, x, None, length=3)[0]

    sharded = jax.shard_map(
        stack, mesh=make_mesh(), in_specs=(P("a"), P(), P()), out_specs=P("a")
    )
    got = jax.jit(passes(sharded))(x, w, b, dy)
    want = passes(stack)(x, w, b, dy)
    for g, e in zip(got, want, strict=True):
        oracle.assert_same(g, e, case.dtype, 10 * case.reduction)


def test_remat_and_vmap_inside():
    f = bind(CASE)

    def local(x, w, b):
        one = jax.checkpoint(lambda x: f(x, w, b))
        return jax.vmap(one)(x[:, None])[:, 0]

    sharded = jax.shard_map(
        local, mesh=make_mesh(), in_specs=(P("a"), P(), P()), out_specs=P("a")
    )
    check(CASE, jax.jit(passes(sharded))(*operands(CASE)))


def test_only_some_axes_manual():
    """The other axes stay with the partitioner: right, whatever it does with them."""
    sharded = jax.shard_map(
        bind(CASE),
        mesh=make_mesh(),
        in_specs=(P("a"), P(), P()),
        out_specs=P("a"),
        axis_names={"a"},
    )
    check(CASE, jax.jit(passes(sharded))(*operands(CASE)))


def test_an_explicit_mesh_outside():
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, w, b, dy = (jnp.asarray(a) for a in operands(CASE))
        x, dy = (jax.sharding.reshard(a, P("a")) for a in (x, dy))
        sharded = jax.shard_map(
            bind(CASE), in_specs=(P("a"), P(), P()), out_specs=P("a")
        )
        check(CASE, jax.jit(passes(sharded))(x, w, b, dy))


def test_halos_by_hand():
    """Spatial sharding written out with ppermute: the op takes any crop it needs."""
    case = CASE.replace(name="by_hand", h=16)
    x, w, b, _ = operands(case)
    f = bind(case, padding=((1 + 2, 1 + 2), (1, 1)))

    def local(x, w, b):
        size = jax.lax.axis_size("a")
        up = [(i, i + 1) for i in range(size - 1)]
        down = [(i + 1, i) for i in range(size - 1)]
        above = jax.lax.ppermute(x[:, :, -1:], "a", up)
        below = jax.lax.ppermute(x[:, :, :1], "a", down)
        return f(jnp.concatenate([above, x, below], axis=2), w, b)

    sharded = jax.shard_map(
        local,
        mesh=make_mesh(),
        in_specs=(P(None, None, "a"), P(), P()),
        out_specs=P(None, None, "a"),
    )
    check(case, jax.jit(passes(sharded))(*operands(case)))
    assert np.isfinite(jax.jit(sharded)(x, w, b)).all()
