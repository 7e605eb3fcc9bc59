"""`jax.export`: round trips, derivatives, symbolic sizes, and the missing package."""

import functools
import pathlib
import subprocess
import sys

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

CASES = [
    cases.Case("exported", 2, 4, 6, 5, 4, 3, 3, (2, 2), (1, 1), (1, 1)),
    cases.Case("exported_groups", 2, 4, 6, 5, 4, 3, 2, (2, 1), (1, 0), groups=2),
    cases.Case("exported_nhwc", 2, 4, 6, 5, 4, 3, 2, (2, 1), layout="NHWC"),
    cases.Case("exported_no_bias", 2, 4, 6, 5, 4, 3, 2, (2, 3), bias=False),
]
HERE = "cuda" if jax.default_backend() == "gpu" else "cpu"


def bind(case, **changes):
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def exported(f, *args, platforms=("cpu", "cuda")):
    """An exported function that has been through bytes, with two derivatives."""
    program = export.export(
        jax.jit(f), platforms=platforms, disabled_checks=export_checks()
    )(*args)
    return export.deserialize(program.serialize(vjp_order=2))


def operands(case):
    x, w, b, dy = cases.put(case, case.data())
    return ((x, w) if b is None else (x, w, b)), dy


def check(case, call):
    """The result and the gradients of a call, from the definition."""
    args, dy = operands(case)
    y, pullback = jax.vjp(call, *args)
    want = case.expected()
    for name, value in zip(("y", "dx", "dw", "db"), (y, *pullback(dy)), strict=False):
        value = case.from_layout(value) if name in ("y", "dx") else value
        oracle.assert_close(value, want[name], case.dtype, what=name)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("autodiff", ["reverse", "both"])
@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_round_trip(case, autodiff, backend):
    args, _ = operands(case)
    program = exported(bind(case, autodiff=autodiff, backend=backend), *args)
    check(case, program.call)


def test_native_calls_are_exported():
    """The kernels of this machine, under names that carry their version."""
    args, _ = operands(CASES[0])
    program = export.export(
        jax.jit(bind(CASES[0], backend=HERE)),
        platforms=[HERE],
        disabled_checks=export_checks(),
    )(*args)
    assert "@jax_transconv.forward.v1" in program.mlir_module()
    check(CASES[0], export.deserialize(program.serialize(vjp_order=1)).call)


def test_second_derivative():
    case = CASES[0]
    (x, w, b), _ = operands(case)

    def twice(f):
        def first(w):
            return (jax.grad(lambda x: jnp.sin(f(x, w, b)).sum())(x) ** 2).sum()

        return jax.grad(first)(w)

    f = bind(case)
    program = exported(f, x, w, b)
    oracle.assert_same(twice(program.call), twice(f), case.dtype, 10 * case.reduction)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_for_a_platform_that_need_not_be_here(platform):
    args, _ = operands(CASES[0])
    program = exported(bind(CASES[0]), *args, platforms=[platform])
    assert program.platforms == (platform,)
    assert program.out_avals[0].shape == CASES[0].out_shape


def test_without_the_checks():
    """JAX's own refusal, which `export_checks` is for."""
    args, _ = operands(CASES[0])
    with pytest.raises(ValueError, match=r"@jax_transconv\.forward\.v1"):
        export.export(jax.jit(bind(CASES[0], backend=HERE)))(*args)


SYMBOLIC = ["n, 4, 5, 4", "2, 4, h, w", "n, 4, h, w", "n, 4, 2*h + 1, 2*w"]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("shape", "autodiff"), [*((s, "reverse") for s in SYMBOLIC), (SYMBOLIC[2], "both")]
)
def test_symbolic_sizes(case, shape, autodiff):
    """One program for every size, forward and backward."""
    (_, *params), _ = operands(case)
    parts = [part.strip() for part in shape.split(",")]
    order = (0, 2, 3, 1) if case.layout == "NHWC" else range(4)
    sizes = export.symbolic_shape(", ".join(parts[i] for i in order))
    x = jax.ShapeDtypeStruct(sizes, jnp.dtype(case.dtype))
    program = exported(bind(case, autodiff=autodiff), x, *params)
    for n, h, w in ((1, 5, 4), (3, 9, 6)):
        member = case.replace(
            name=f"{case}-{n}",
            n=n if "n" in shape else 2,
            h=h if "h" in shape else 5,
            w=w if "h" in shape else 4,
        )
        check(member, program.call)


def test_symbolic_sizes_that_may_be_empty():
    """Said when traced, with the constraint that settles it."""
    f = functools.partial(conv_transpose2d, padding=2)
    w = jax.ShapeDtypeStruct((4, 3, 3, 3), jnp.dtype("float32"))

    def trace(*constraints):
        sizes = export.symbolic_shape("n, 4, h, 8", constraints=constraints)
        x = jax.ShapeDtypeStruct(sizes, jnp.dtype("float32"))
        return jax.eval_shape(f, x, w)

    with pytest.raises(ValueError, match=r"output height h - 2 .* at least 1") as error:
        trace()
    assert "constraints=['h >= 3']" in str(error.value)
    assert trace("h >= 3").shape[1:] != ()

    # A window of which both ends lie outside: all that it appends must fit.
    g = functools.partial(conv_transpose2d, stride=2, padding=((9, -9), (0, 0)))
    sizes = export.symbolic_shape("n, 4, h, 8", constraints=["h >= 3"])
    x = jax.ShapeDtypeStruct(sizes, jnp.dtype("float32"))
    with pytest.raises(ValueError, match=r"h >= 4"):
        jax.eval_shape(g, x, w)


def test_symbolic_size_with_an_output_size():
    w = jax.ShapeDtypeStruct((4, 3, 3, 3), jnp.dtype("float32"))
    sizes = export.symbolic_shape("n, 4, h, 8")
    x = jax.ShapeDtypeStruct(sizes, jnp.dtype("float32"))
    with pytest.raises(ValueError, match=r"output_size needs a known .* height h"):
        jax.eval_shape(functools.partial(conv_transpose2d, output_size=10), x, w)


def test_native_rows_decline_symbolic_sizes():
    """A custom call has a fixed size: insisting on one says so."""
    (_, *params), _ = operands(CASES[0])
    sizes = export.symbolic_shape("n, 4, 5, 4")
    x = jax.ShapeDtypeStruct(sizes, jnp.dtype("float32"))
    with pytest.raises(ValueError, match="sizes are symbolic"):
        exported(bind(CASES[0], backend="cpu"), x, *params, platforms=["cpu"])


def test_over_several_devices():
    """From inside shard_map; the partitioner's own requests can't be serialised."""
    case = CASES[0].replace(name="exported_shards", n=8)
    mesh = jax.make_mesh(
        (4,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:4]
    )
    args, dy = operands(case)
    specs = (P("a"), P(), P())
    sharded = jax.shard_map(bind(case), mesh=mesh, in_specs=specs, out_specs=P("a"))
    args = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(args, specs, strict=True)
    ]
    program = exported(sharded, *args, platforms=["cpu"])
    assert program.nr_devices == 4

    @jax.jit
    def passes(x, w, b, dy):
        y, pullback = jax.vjp(program.call, x, w, b)
        return y, *pullback(dy)

    want = case.expected()
    dy = jax.device_put(dy, NamedSharding(mesh, P("a")))
    for name, value in zip(("y", "dx", "dw", "db"), passes(*args, dy), strict=True):
        oracle.assert_close(value, want[name], case.dtype, what=name)


_LOAD = """
import sys
import jax
import numpy as np
from jax import export
{imports}
with open(sys.argv[1], "rb") as file:
    program = export.deserialize(bytearray(file.read()))
args = [np.ones(a.shape, a.dtype) for a in program.in_avals]
print(float(np.asarray(program.call(*args)).sum()))
"""


@pytest.mark.parametrize("imports", ["", "import jax_transconv"])
def test_in_another_process(imports, tmp_path):
    """With the package it runs; without, the error names the package's call."""
    case = CASES[0]
    args, _ = operands(case)
    f = bind(case, backend=HERE)
    program = export.export(
        jax.jit(f), platforms=[HERE], disabled_checks=export_checks()
    )(*args)
    path = tmp_path / "program"
    path.write_bytes(program.serialize())
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD.format(imports=imports), str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=root,
    )
    if imports:
        assert done.returncode == 0, done.stderr
        want = f(*(jnp.ones_like(a) for a in args)).sum()
        np.testing.assert_allclose(float(done.stdout), float(want), rtol=1e-5)
    else:
        assert done.returncode != 0
        assert "jax_transconv.forward.v1" in done.stderr
