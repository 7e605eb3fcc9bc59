"""jit: one trace per problem, the same bits as eager, and small programs."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rows

from jax_transconv import conv_transpose2d, plan

CASE = cases.Case("jit", 2, 4, 6, 5, 4, 3, 2, (2, 1), (1, 0), groups=2)


def test_equal_arguments_share_one_trace():
    """2, (2, 2), [2, 2] and numpy integers are one problem: jit compiles once."""
    x, w, b, _ = cases.put(CASE, CASE.data())

    @functools.partial(jax.jit, static_argnames="stride")
    def f(x, w, b, stride):
        return conv_transpose2d(x, w, b, stride=stride, groups=2)

    jaxprs = {
        str(f.trace(x, w, b, stride=stride).jaxpr)
        for stride in (2, (2, 2), np.int64(2), (np.int32(2), 2))
    }
    assert len(jaxprs) == 1


def test_eager_calls_are_cached():
    """The second eager call of a problem compiles nothing."""
    x, w, b, _ = cases.put(CASE, CASE.data())
    conv_transpose2d(x, w, b, **CASE.kwargs).block_until_ready()
    with jax.log_compiles(False), jax.no_tracing():
        y = conv_transpose2d(x, w, b, **CASE.kwargs)
    oracle.assert_close(y, CASE.expected()["y"], CASE.dtype)


def test_a_traced_function_retraces_only_for_new_shapes():
    traces = []

    @jax.jit
    def f(x, w, b):
        traces.append(x.shape)
        return conv_transpose2d(x, w, b, **CASE.kwargs)

    for seed in range(3):
        case = CASE.replace(name=f"retrace{seed}")
        x, w, b, _ = cases.put(case, case.data())
        oracle.assert_close(f(x, w, b), case.expected()["y"], CASE.dtype)
    assert len(traces) == 1


@pytest.mark.parametrize("kind", ["eager", "jit", "jit_of_jit"])
def test_same_bits_in_every_mode(kind):
    x, w, b, _ = cases.put(CASE, CASE.data())
    f = functools.partial(conv_transpose2d, **CASE.kwargs)
    run = {
        "eager": f,
        "jit": jax.jit(lambda *a: f(*a)),
        "jit_of_jit": jax.jit(lambda *a: jax.jit(lambda *b: f(*b))(*a)),
    }[kind]
    np.testing.assert_array_equal(run(x, w, b), f(x, w, b))


def test_disable_jit():
    x, w, b, dy = cases.put(CASE, CASE.data())
    with jax.disable_jit():
        y, pullback = jax.vjp(lambda *a: conv_transpose2d(*a, **CASE.kwargs), x, w, b)
        grads = pullback(dy)
    want = CASE.expected()
    for name, value in zip(("y", "dx", "dw", "db"), (y, *grads), strict=True):
        oracle.assert_close(value, want[name], CASE.dtype, what=name)


def test_operands_as_constants():
    """Weights closed over, not passed."""
    x, w, b, _ = cases.put(CASE, CASE.data())
    y = jax.jit(lambda x: conv_transpose2d(x, w, b, **CASE.kwargs))(x)
    oracle.assert_close(y, CASE.expected()["y"], CASE.dtype)
    y = jax.jit(lambda: conv_transpose2d(x, w, b, **CASE.kwargs))()
    oracle.assert_close(y, CASE.expected()["y"], CASE.dtype)


def test_lists_under_control_flow():
    """Unhashable forms of static arguments, where they have broken other packages."""
    x, w, b, _ = cases.put(CASE, CASE.data())

    def branch(size):
        return lambda x: conv_transpose2d(
            x, w, b, stride=[4, 4], padding=[[0, 0], [0, 0]], groups=2, output_size=size
        ).sum()

    branches = [branch([20, 15]), branch(np.array([22, 17]))]
    run = jax.jit(lambda i, x: jax.lax.switch(i, branches, x))
    for i, one in enumerate(branches):
        np.testing.assert_allclose(run(i, x), one(x), rtol=1e-4)


def test_the_program_is_small():
    """A native call is one custom call and nothing that touches an image."""
    x, w, b, _ = cases.put(CASE, CASE.data())
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    f = functools.partial(conv_transpose2d, **CASE.kwargs, backend=native)
    text = jax.jit(f).lower(x, w, b).as_text()
    assert len(re.findall(r"custom_call @jax_transconv\.forward\.v1", text)) == 1
    others = set(re.findall(r"stablehlo\.(\w+)", text)) - {"custom_call", "constant"}
    assert not others


def test_results_that_nobody_uses_are_not_computed():
    x, w, b, _ = cases.put(CASE, CASE.data())
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"

    def f(x, w, b):
        unused = conv_transpose2d(x, w, b, **CASE.kwargs, backend=native)
        return (unused, x + 1)[1]

    text = jax.jit(f).lower(x, w, b).compile().as_text()
    assert "jax_transconv" not in text


def test_two_calls_in_one_program():
    """A small decoder: shapes, dtypes and rows that differ, in one jit."""
    first = cases.Case("first", 2, 8, 6, 4, 4, 4, 4, (2, 2), (1, 1))
    second = cases.Case("second", 2, 6, 6, 8, 8, 3, 3, (2, 2), (1, 1), groups=6)
    a, c = first.data(), second.data()

    @jax.jit
    def f(x, w1, b1, w2, b2):
        h = conv_transpose2d(x, w1, b1, **first.kwargs)
        return conv_transpose2d(h, w2, b2, **second.kwargs)

    y = f(a.x, a.weight, a.bias, c.weight, c.bias)
    hidden = first.expected()["y"].value
    want = oracle.forward(hidden, c.weight, c.bias, **second.geometry)
    oracle.assert_same(y, want, "float32", 100)


@pytest.mark.parametrize("stride", [(16, 16), (40, 1), (9, 9)])
def test_program_size_does_not_follow_the_stride(stride):
    """A plain-JAX program stays short however many phases there are."""
    x = jax.ShapeDtypeStruct((1, 2, 4, 4), jnp.dtype("float32"))
    w = jax.ShapeDtypeStruct((2, 3, 2 * stride[0], 2 * stride[1]), jnp.dtype("float32"))
    for backend in ("auto", "xla"):
        f = functools.partial(conv_transpose2d, stride=stride, backend=backend)
        both = jax.jit(lambda x, w, f=f: jax.vjp(f, x, w)[1](f(x, w)))
        text = both.lower(x, w).as_text()
        assert len(re.findall(r"stablehlo\.(convolution|dot_general)", text)) <= 150


def test_threads_may_share_a_function():
    """Concurrent callers, different problems."""
    from concurrent.futures import ThreadPoolExecutor

    members = [
        CASE.replace(name=f"thread{i}", n=1 + i % 3, h=3 + i % 5) for i in range(16)
    ]

    def one(case):
        x, w, b, _ = cases.put(case, case.data())
        return np.asarray(conv_transpose2d(x, w, b, **case.kwargs))

    with ThreadPoolExecutor(4) as pool:
        for case, y in zip(members, pool.map(one, members), strict=True):
            oracle.assert_close(y, case.expected()["y"], case.dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize(
    "row", [r for r in plan.CANDIDATES if r.backend == "cuda"], ids=lambda r: r.name
)
def test_command_buffers(row, precision):
    """Kernels that start before the one in front of them ends do not, in a graph."""
    case = rows.case_for(row).replace(bias=False)
    spec = rows.problem(case, "cuda", precision=precision)
    samples = [case.replace(name=f"replay{i}").data() for i in range(5)]
    for i, sample in enumerate(samples):
        # Other scales than those of the call before.
        sample.x[:], sample.dy[:] = 2.0 ** (9 * i) * sample.x, 2.0**-i * sample.dy
    wanted = [case.expected(sample) for sample in samples]
    for pass_name in row.passes:
        reason = rows.why_not(row, pass_name, spec, "cuda")
        if reason is not None:
            pytest.skip(reason)
        run, names = rows.program(case, pass_name, row.name, precision=precision)

        def step(first, *rest, run=run):
            return jax.tree.map(lambda v: 2 * v, run(4 * first, *rest))

        arguments = []
        for sample in samples:
            operands = {"x": sample.x, "w": sample.weight, "b": None, "dy": sample.dy}
            arguments.append(tuple(operands[name] for name in names))
        what = rows.RESULTS[pass_name][0]
        for i, results in rows.replays(step, arguments):
            (value,) = jax.tree.leaves(results)
            oracle.assert_close(
                value / 8, wanted[i][what], case.dtype, precision=precision, what=what
            )
