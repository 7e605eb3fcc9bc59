"""Every transformation of every pass on every backend: the table in docs.

Each pass is a bilinear function of two arrays, so what a transformation of it must give
follows from the oracle's three passes, with no derivative of ours and none of JAX's.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_transconv import conv_transpose2d, export_checks

CASE = cases.Case("matrix", 8, 4, 6, 8, 3, 4, 3, (2, 1), (1, 1))
BACKENDS = ("xla", "cpu", "cuda")
PASSES = ("forward", "grad_input", "grad_weight")
MEMBERS = 3


def _reference(a: str, b: str):
    """The oracle's pass over two roles, of x, w and y."""
    kernel, image = (CASE.kh, CASE.kw), (CASE.h, CASE.w)
    return {
        ("x", "w"): functools.partial(oracle.forward, **CASE.geometry),
        ("y", "w"): functools.partial(
            oracle.grad_input, x_spatial=image, **CASE.geometry
        ),
        ("x", "y"): functools.partial(
            oracle.grad_weight, kernel=kernel, **CASE.geometry
        ),
    }[a, b]


ROLES = {
    "forward": ("x", "w", "y"),
    "grad_input": ("y", "w", "x"),
    "grad_weight": ("x", "y", "w"),
}
SHAPES = {"x": CASE.x_shape, "w": CASE.weight_shape, "y": CASE.out_shape}


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass on one backend: p(a, b), and what it must give."""

    name: str
    backend: str

    def __call__(self, a, b):
        return self.form("reverse")(a, b)

    def form(self, autodiff: str) -> Callable:
        f = functools.partial(
            conv_transpose2d, **CASE.kwargs, backend=self.backend, autodiff=autodiff
        )
        # Both are linear in what they are transposed in: where does not matter.
        return {
            "forward": f,
            "grad_input": lambda dy, w: jax.vjp(
                lambda x: f(x, w), jnp.zeros(SHAPES["x"], dy.dtype)
            )[1](dy)[0],
            "grad_weight": lambda x, dy: jax.vjp(
                lambda w: f(x, w), jnp.zeros(SHAPES["w"], x.dtype)
            )[1](dy)[0],
        }[self.name]

    def draw(self, seed: int, members: int | None = None):
        """a, b and c, the last of the shape of the result, as numpy arrays."""
        rng = np.random.default_rng(seed)
        lead = () if members is None else (members,)
        return tuple(
            rng.standard_normal((*lead, *SHAPES[role])).astype(CASE.dtype)
            for role in ROLES[self.name]
        )

    def put(self, *arrays):
        device = jax.devices("cuda" if self.backend == "cuda" else "cpu")[0]
        if self.backend == "xla":
            device = jax.devices()[0]
        return jax.device_put(arrays, device)

    def want(self, a, b):
        first, second, _ = ROLES[self.name]
        return _reference(first, second)(a, b)

    def want_gradients(self, a, b, c):
        """Of <p(a, b), c>: the two other passes."""
        first, second, third = ROLES[self.name]
        arrays = {first: a, second: b, third: c}

        def other(wanted):
            key = {"x": ("y", "w"), "y": ("x", "w"), "w": ("x", "y")}[wanted]
            return _reference(*key)(*(arrays[r] for r in key))

        return other(first), other(second)


def same(got, want):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        oracle.assert_same(g, e, CASE.dtype, 4 * CASE.reduction)


def gradient(function):
    return jax.grad(lambda a, b, c: jnp.vdot(function(a, b), c), (0, 1))


# --- the transformations ---


def jit(p: Pass):
    a, b, _ = p.draw(0)
    same(jax.jit(p)(*p.put(a, b)), p.want(a, b))


def disable_jit(p: Pass):
    a, b, _ = p.draw(1)
    with jax.disable_jit():
        same(p(*p.put(a, b)), p.want(a, b))


def grad(p: Pass):
    a, b, c = p.draw(2)
    same(jax.jit(gradient(p))(*p.put(a, b, c)), p.want_gradients(a, b, c))


def grad_both(p: Pass):
    """Reverse mode of the form that has forward mode, too."""
    a, b, c = p.draw(3)
    got = jax.jit(gradient(p.form("both")))(*p.put(a, b, c))
    same(got, p.want_gradients(a, b, c))


def jvp(p: Pass):
    (a, b, _), (ta, tb, _) = p.draw(4), p.draw(5)
    push = jax.jit(lambda a, b, ta, tb: jax.jvp(p.form("both"), (a, b), (ta, tb)))
    want = p.want(a, b), p.want(ta, b) + p.want(a, tb)
    same(push(*p.put(a, b, ta, tb)), want)


def linearize(p: Pass):
    (a, b, _), (ta, tb, _) = p.draw(6), p.draw(7)
    a, b, ta, tb = p.put(a, b, ta, tb)
    _, push = jax.linearize(p.form("both"), a, b)
    same(push(ta, tb), p.want(ta, b) + p.want(a, tb))


def _vmap(p: Pass, axes):
    (a, b, _), (many_a, many_b, _) = p.draw(8), p.draw(9, MEMBERS)
    args = [
        one if axis is None else many
        for one, many, axis in zip((a, b), (many_a, many_b), axes, strict=True)
    ]
    got = jax.jit(jax.vmap(p, axes))(*p.put(*args))
    members = [
        [v if axis is None else v[i] for v, axis in zip(args, axes, strict=True)]
        for i in range(MEMBERS)
    ]
    same(got, np.stack([p.want(*m) for m in members]))


def vmap_first(p: Pass):
    _vmap(p, (0, None))


def vmap_second(p: Pass):
    _vmap(p, (None, 0))


def vmap_both(p: Pass):
    _vmap(p, (0, 0))


def vmap_of_grad(p: Pass):
    a, b, c = p.draw(10, MEMBERS)
    b = b[0]
    got = jax.jit(jax.vmap(gradient(p), (0, None, 0)))(*p.put(a, b, c))
    want = [p.want_gradients(a[i], b, c[i]) for i in range(MEMBERS)]
    same(got, [np.stack(w) for w in zip(*want, strict=True)])


def grad_of_vmap(p: Pass):
    a, b, c = p.draw(11, MEMBERS)
    b = b[0]
    got = jax.jit(gradient(jax.vmap(p, (0, None))))(*p.put(a, b, c))
    want = [p.want_gradients(a[i], b, c[i]) for i in range(MEMBERS)]
    same(got, (np.stack([w[0] for w in want]), sum(w[1] for w in want)))


def remat(p: Pass):
    a, b, c = p.draw(12)
    got = jax.jit(gradient(jax.checkpoint(p)))(*p.put(a, b, c))
    same(got, p.want_gradients(a, b, c))


def scan(p: Pass):
    """A scan over members, and its gradient."""
    a, b, c = p.draw(13, MEMBERS)
    b = b[0]

    def scanned(a, b):
        return jax.lax.scan(lambda _, a: (None, p(a, b)), None, a)[1]

    args = p.put(a, b, c)
    same(jax.jit(scanned)(*args[:2]), np.stack([p.want(m, b) for m in a]))
    want = [p.want_gradients(a[i], b, c[i]) for i in range(MEMBERS)]
    want = np.stack([w[0] for w in want]), sum(w[1] for w in want)
    same(jax.jit(gradient(scanned))(*args), want)


def cond(p: Pass):
    a, b, c = p.draw(14)

    def either(a, b):
        return jax.lax.cond(
            a.sum() < np.inf, p, lambda *_: jnp.zeros(c.shape, c.dtype), a, b
        )

    got = jax.jit(gradient(either))(*p.put(a, b, c))
    same(got, p.want_gradients(a, b, c))


def _mesh(p: Pass, kind=AxisType.Auto):
    devices = p.put(0)[0].devices().pop().platform
    devices = jax.devices("cuda" if devices == "gpu" else devices)
    if len(devices) < 2:
        pytest.skip(f"needs two devices, this machine has {len(devices)}")
    return jax.make_mesh((2,), ("a",), axis_types=(kind,), devices=devices[:2])


def _specs(p: Pass, spec):
    """The images are cut, the weight is whole."""
    return tuple(P() if role == "w" else spec for role in ROLES[p.name])


def _place(mesh, specs, *arrays):
    return tuple(
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(arrays, specs, strict=False)
    )


def _sharded(p: Pass, spec, seed: int, exchanges: bool):
    a, b, c = p.draw(seed)
    mesh = _mesh(p)
    specs = _specs(p, spec)
    args = _place(mesh, specs, a, b, c)
    compiled = jax.jit(p).lower(*args[:2]).compile()
    text = compiled.as_text()
    assert not re.search(r" (all-gather|all-to-all)(-start)?\(", text)
    assert bool(re.search(r" all-reduce(-start)?\(", text)) == (specs[2] == P())
    assert bool(re.search(r" collective-permute(-start)?\(", text)) == exchanges
    y = compiled(*args[:2])
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, specs[2]), 4)
    same(y, p.want(a, b))
    same(jax.jit(gradient(p))(*args), p.want_gradients(a, b, c))


def sharded_batch(p: Pass):
    _sharded(p, P("a"), 15, exchanges=False)


def sharded_height(p: Pass):
    _sharded(p, P(None, None, "a"), 16, exchanges=True)


def explicit_mesh(p: Pass):
    a, b, c = p.draw(17)
    mesh = _mesh(p, AxisType.Explicit)
    specs = _specs(p, P("a", None, None, None))
    with jax.set_mesh(mesh):
        args = _place(mesh, specs, a, b, c)
        f = functools.partial(conv_transpose2d, **CASE.kwargs, backend=p.backend)
        x, w, y = (args[ROLES[p.name].index(r)] for r in "xwy")

        @jax.jit
        def passes(x, w, dy):
            y, pullback = jax.vjp(f, x, w)
            return y, *pullback(dy)

        results = dict(zip("yxw", passes(x, w, y), strict=True))
        got = results[ROLES[p.name][2]]
        assert jax.typeof(got) == jax.typeof(args[2])
        same(got, p.want(a, b))


def shard_map(p: Pass):
    """With its checks on; a result that is whole is a sum over the shards."""
    a, b, c = p.draw(18)
    mesh = _mesh(p)
    specs = _specs(p, P("a"))
    f = functools.partial(conv_transpose2d, **CASE.kwargs, backend=p.backend)

    def local(x, w, dy):
        y, pullback = jax.vjp(f, x, w)
        return dict(zip("yxw", (y, *pullback(dy)), strict=True))

    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P("a"), P(), P("a")),
        out_specs={"y": P("a"), "x": P("a"), "w": P()},
    )
    arrays = dict(zip(ROLES[p.name], _place(mesh, specs, a, b, c), strict=True))
    got = jax.jit(run)(*(arrays[r] for r in "xwy"))
    same(got[ROLES[p.name][2]], p.want(a, b))


def exported(p: Pass):
    a, b, c = p.draw(19)
    args = p.put(a, b, c)
    platform = next(iter(args[0].devices())).platform
    program = export.export(
        jax.jit(p),
        platforms=["cuda" if platform == "gpu" else platform],
        disabled_checks=export_checks(),
    )(*(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in args[:2]))
    call = export.deserialize(program.serialize(vjp_order=1)).call
    same(call(*args[:2]), p.want(a, b))
    same(gradient(call)(*args), p.want_gradients(a, b, c))


TRANSFORMATIONS = {
    "jit": jit,
    "disable_jit": disable_jit,
    "grad": grad,
    "grad, autodiff='both'": grad_both,
    "jvp": jvp,
    "linearize": linearize,
    "vmap over the first": vmap_first,
    "vmap over the second": vmap_second,
    "vmap over both": vmap_both,
    "vmap of grad": vmap_of_grad,
    "grad of vmap": grad_of_vmap,
    "remat": remat,
    "scan": scan,
    "cond": cond,
    "jit, batch sharded": sharded_batch,
    "jit, height sharded": sharded_height,
    "explicit mesh": explicit_mesh,
    "shard_map": shard_map,
    "export": exported,
}


@pytest.mark.parametrize(
    "backend",
    [pytest.param(b, marks=[pytest.mark.cuda] * (b == "cuda")) for b in BACKENDS],
)
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize(
    "transformation", TRANSFORMATIONS.values(), ids=lambda f: f.__name__
)
def test_cell(transformation, name, backend):
    transformation(Pass(name, backend))


def test_the_table_in_the_documentation():
    """Its rows are the transformations above, and every test that it names is there."""
    tests = pathlib.Path(__file__).parents[1]
    path = tests.parent / "docs" / "transformations.md"
    if not path.exists():
        pytest.skip("an installed package has no docs")
    text = path.read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `(\w+)` \|", text, re.MULTILINE)
    assert dict(rows) == {k: f.__name__ for k, f in TRANSFORMATIONS.items()}
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert named
    for file, test in named:
        (found,) = tests.rglob(file)
        assert re.search(rf"^def {test}\(", found.read_text(), re.MULTILINE), test
