"""Every problem of cases.json, run the way its `transform` says.

`RUNNERS` maps each id to the function that runs it; `OUT_OF_SCOPE` maps the ids that
belong to a feature which this package does not have yet to that feature. Together they
must cover the file: an entry that is neither fails `test_every_case_is_accounted_for`.

The reference is the scatter oracle everywhere, and PyTorch too where it is installed.
"""

import functools
import importlib.util
import math
import re
import subprocess
import sys
import time

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rows
from cases import Data
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from reported import REPORTED, Reported

from jax_transconv import conv_transpose2d, export_checks

HAS_TORCH = importlib.util.find_spec("torch") is not None

# --- references -----------------------------------------------------------------------


def torch_passes(case, data: Data) -> dict[str, np.ndarray]:
    """PyTorch's result and gradients in float64, on CPU."""
    import torch

    def tensor(array):
        if array is None:
            return None
        return torch.tensor(oracle.as_float64(array), requires_grad=True)

    x, w, b = (tensor(a) for a in (data.x, data.weight, data.bias))
    y = torch.nn.functional.conv_transpose2d(x, w, b, **case.torch_kwargs)
    y.backward(torch.tensor(oracle.as_float64(data.dy)))
    results = {"y": y, "dx": x.grad, "dw": w.grad}
    if b is not None:
        results["db"] = b.grad
    return {name: value.detach().numpy() for name, value in results.items()}


def check(case, data: Data, got: dict) -> None:
    """Compare results by name with the oracle, and with torch where it is installed."""
    want = case.expected(data)
    for name, value in got.items():
        oracle.assert_close(value, want[name], case.dtype, what=f"{case.name} {name}")
    if HAS_TORCH:
        reference = torch_passes(case, data)
        for name, value in got.items():
            torch_want = oracle.Expected(
                reference[name], want[name].scale, want[name].reduction
            )
            oracle.assert_close(
                value, torch_want, case.dtype, what=f"{case.name} {name} against torch"
            )


def operands(data: Data):
    """x, weight, bias as jax arrays."""
    return tuple(
        None if a is None else jnp.asarray(a) for a in (data.x, data.weight, data.bias)
    )


def call(case, **changes):
    """The function under test with the case's arguments bound."""
    return functools.partial(conv_transpose2d, **{**case.kwargs, **changes})


def gradients(case, data: Data, f=None) -> dict:
    """The gradients of <f(x, w, b), dy>, by name."""
    f = f or call(case)
    args = operands(data)
    wanted = (0, 1) if args[2] is None else (0, 1, 2)
    dy = jnp.asarray(data.dy)
    found = jax.grad(lambda *a: jnp.vdot(f(*a), dy), argnums=wanted)(*args)
    return dict(zip(("dx", "dw", "db"), found, strict=False))


# --- runners --------------------------------------------------------------------------


def run_forward(r: Reported) -> None:
    data = r.data()
    y = call(r.case)(*operands(data))
    assert y.dtype == jnp.dtype(r.case.dtype)
    assert list(y.shape) == r.entry["out_shape"]
    check(r.case, data, {"y": y})


def run_infinite_weight(r: Reported) -> None:
    """On GPUs nan may stand for inf, as docs/precision.md says; a number never does."""
    if jax.default_backend() != "gpu":
        run_forward(r)
        return
    data = r.data()
    y = call(r.case)(*operands(data))
    want = r.case.expected(data)["y"].value
    assert y.dtype == jnp.dtype(r.case.dtype)
    assert y.shape == want.shape
    assert not np.isfinite(want).any()
    assert not np.isfinite(np.asarray(y)).any()


def run_rounded(r: Reported) -> None:
    """Within 2 ulp of the float32 result rounded once."""
    data = r.data()
    y = call(r.case)(*operands(data))
    assert y.dtype == jnp.dtype(r.case.dtype)
    want = r.case.expected(data)["y"]
    once = oracle.round_to(want.value, r.case.dtype)
    distance = oracle.ulp_distance(np.asarray(y), once)
    # Where the sum cancels, an ulp of the result is finer than float32 can resolve.
    resolvable = np.abs(want.value) > 2.0**-10 * want.scale
    assert resolvable.any()
    assert distance[resolvable].max() <= 2
    oracle.assert_close(y, want, r.case.dtype)


def run_error(kind: type[Exception], *words: str, **changes):
    """A refusal of this exact type, with these words, before anything runs."""

    def run(r: Reported) -> None:
        case = r.case
        shapes = {
            "x": case.x_shape,
            "w": tuple(r.extra.get("weight_shape", case.weight_shape)),
            "b": tuple(r.extra.get("bias_shape", (case.cout,))),
        }
        dtype = jnp.dtype(case.dtype)
        structs = {k: jax.ShapeDtypeStruct(s, dtype) for k, s in shapes.items()}
        with pytest.raises((ValueError, TypeError)) as caught:
            jax.eval_shape(
                lambda x, w, b: call(case, **changes)(x, w, b),
                *structs.values(),
            )
        message = str(caught.value)
        assert type(caught.value) is kind, (type(caught.value), message)
        assert message.startswith("conv_transpose2d: ")
        assert "Resolution: " in message
        for word in words:
            assert re.search(word, message, re.DOTALL), f"{word!r} is not in {message}"

    return run


def run_crop_equivalence(r: Reported) -> None:
    data = r.data()
    args = operands(data)
    ph, pw = r.case.padding
    y = call(r.case)(*args)
    whole = call(r.case, padding=0)(*args)
    cut = whole[:, :, ph : whole.shape[2] - ph, pw : whole.shape[3] - pw]
    assert list(y.shape) == r.entry["out_shape"]
    oracle.assert_same(y, cut, r.case.dtype, r.case.reduction)
    check(r.case, data, {"y": y})


def run_output_size(r: Reported) -> None:
    case = r.case
    size = r.extra["output_size"]
    base = case.out_shape[2:]
    extra = tuple(s - b for s, b in zip(size, base, strict=True))
    equivalent = case.replace(output_padding=extra)
    data = equivalent.data()
    keywords = case.kwargs
    del keywords["output_padding"]
    y = conv_transpose2d(*operands(data), output_size=size, **keywords)
    assert list(y.shape) == r.entry["out_shape"]
    check(equivalent, data, {"y": y})


def run_argument_forms(r: Reported) -> None:
    case, data = r.case, r.data()
    args = operands(data)
    want = call(case)(*args)
    check(case, data, {"y": want})
    pairs = ("stride", "padding", "output_padding", "dilation")
    for form in (list, np.array, lambda p: tuple(np.int64(v) for v in p)):
        forms = {name: form(getattr(case, name)) for name in pairs}
        np.testing.assert_array_equal(call(case, **forms)(*args), want)
    # One value for both axes, in every form of one value.
    both = {"stride": 3, "padding": 2, "output_padding": 1, "dilation": 2}
    want = call(case, **{name: (v, v) for name, v in both.items()})(*args)
    for form in (int, np.int32, np.array, lambda v: (v,), lambda v: [v]):
        forms = {name: form(v) for name, v in both.items()}
        np.testing.assert_array_equal(call(case, **forms)(*args), want)


def run_positional(r: Reported) -> None:
    """No order to get wrong: everything after the bias is by keyword only."""
    data = r.data()
    args = operands(data)
    with pytest.raises(TypeError, match="positional"):
        conv_transpose2d(*args, 1, 0, 0, 2, 3)
    check(r.case, data, {"y": call(r.case)(*args)})


def run_value(r: Reported) -> None:
    """DT-15: the bias gradient of ones, exactly."""
    want = float(r.expect.removeprefix("value:"))
    db = gradients(r.case, r.data())["db"]
    assert db.dtype == jnp.dtype(r.case.dtype)
    np.testing.assert_array_equal(oracle.as_float64(db), np.full(r.case.cout, want))


def run_complex(r: Reported) -> None:
    run_error(TypeError, r"\bx\b", "complex64", "float32")(r)


def run_grad(r: Reported) -> None:
    data = r.data()
    got = gradients(r.case, data)
    assert set(got) == ({"dx", "dw", "db"} if r.case.bias else {"dx", "dw"})
    for name, value in got.items():
        assert value.dtype == jnp.dtype(r.case.dtype), name
    check(r.case, data, got)


def run_no_bias_grad(r: Reported) -> None:
    """The gradient has no slot for the bias, and None keeps its place as a pytree."""
    run_grad(r)
    data = r.data()
    x, w, _ = operands(data)
    y, pullback = jax.vjp(call(r.case), x, w, None)
    dx, dw, db = pullback(jnp.asarray(data.dy))
    assert db is None
    check(r.case, data, {"y": y, "dx": dx, "dw": dw})


def run_jvp(r: Reported) -> None:
    case, data = r.case, r.data()
    tangents = case.replace(name=f"{case.name}-tangent").data()
    f = call(case, autodiff="both")
    y, dy = jax.jvp(f, operands(data), operands(tangents))
    check(case, data, {"y": y})
    # y is linear in x, in w and in b: dy = f(dx, w) + f(x, dw) + db.
    parts = [
        Data(tangents.x, data.weight, None, data.dy),
        Data(data.x, tangents.weight, None, data.dy),
    ]
    sums = [case.replace(bias=False).expected(part)["y"] for part in parts]
    db = oracle.as_float64(tangents.bias)[:, None, None]
    want = oracle.Expected(
        sums[0].value + sums[1].value + db,
        sums[0].scale + sums[1].scale + np.abs(db),
        2 * sums[0].reduction,
    )
    oracle.assert_close(dy, want, case.dtype, what="tangent")


def run_jacfwd(r: Reported) -> None:
    case, data = r.case, r.data()
    args = operands(data)
    forward = jax.jacfwd(call(case, autodiff="both"), argnums=(0, 1, 2))(*args)
    for mode in ("both", "reverse"):
        reverse = jax.jacrev(call(case, autodiff=mode), argnums=(0, 1, 2))(*args)
        for a, b, arg in zip(forward, reverse, args, strict=True):
            assert a.shape == case.out_shape + arg.shape
            oracle.assert_same(a, b, case.dtype, case.reduction)
    # The columns of the Jacobian in x, by the oracle: images of unit vectors.
    units = np.eye(args[0].size).reshape(-1, *case.x_shape)
    for column, unit in enumerate(units):
        want = case.replace(bias=False).expected(
            Data(unit, data.weight, None, data.dy)
        )["y"]
        got = np.asarray(forward[0]).reshape(*case.out_shape, -1)[..., column]
        oracle.assert_close(got, want, case.dtype, what=f"column {column}")


def run_hvp(r: Reported) -> None:
    """Forward over reverse of sum(y**3) / 6, against the oracle written out."""
    case, data = r.case, r.data()
    tangents = case.replace(name=f"{case.name}-tangent").data()
    f = call(case, autodiff="both")

    def loss(x, w, b):
        return jnp.sum(f(x, w, b) ** 3) / 6

    args, directions = operands(data), operands(tangents)
    _, got = jax.jvp(jax.grad(loss, argnums=(0, 1, 2)), args, directions)
    other = jax.grad(
        lambda *a: sum(
            jnp.vdot(g, d)
            for g, d in zip(jax.grad(loss, (0, 1, 2))(*a), directions, strict=True)
        ),
        argnums=(0, 1, 2),
    )(*args)

    exact = case.replace(dtype="float64", bias=False)
    y = case.expected(data)["y"].value
    dy = (
        exact.expected(Data(tangents.x, data.weight, None, data.dy))["y"].value
        + exact.expected(Data(data.x, tangents.weight, None, data.dy))["y"].value
        + oracle.as_float64(tangents.bias)[:, None, None]
    )
    bar, bar_dot = y**2 / 2, y * dy
    value = exact.expected(Data(data.x, data.weight, None, bar_dot))
    cross_x = exact.expected(Data(data.x, tangents.weight, None, bar))["dx"]
    cross_w = exact.expected(Data(tangents.x, data.weight, None, bar))["dw"]
    want = (
        value["dx"].value + cross_x.value,
        value["dw"].value + cross_w.value,
        oracle.grad_bias(bar_dot),
    )
    # Products of three factors of float32: bounded by their own root mean square.
    for name, w, a, b in zip(("dx", "dw", "db"), want, got, other, strict=True):
        oracle.assert_same(a, w, case.dtype, 16 * case.reduction, what=name)
        oracle.assert_same(b, w, case.dtype, 16 * case.reduction, what=name)


def run_linear_transpose(r: Reported) -> None:
    case, data = r.case.replace(bias=False), r.data()
    x, w, _ = operands(data)
    f = call(case, autodiff="both")
    transpose = jax.linear_transpose(lambda x: f(x, w), x)
    (dx,) = transpose(jnp.asarray(data.dy))
    check(case, Data(data.x, data.weight, None, data.dy), {"dx": dx})
    transpose = jax.linear_transpose(lambda w: f(x, w), w)
    (dw,) = transpose(jnp.asarray(data.dy))
    check(case, Data(data.x, data.weight, None, data.dy), {"dw": dw})
    # <f(x), dy> equals <x, f'(dy)>.
    left = np.vdot(oracle.as_float64(f(x, w)), oracle.as_float64(data.dy))
    right = np.vdot(oracle.as_float64(data.x), oracle.as_float64(dx))
    np.testing.assert_allclose(left, right, rtol=1e-4)


def run_remat(r: Reported) -> None:
    data = r.data()
    check(r.case, data, gradients(r.case, data, jax.checkpoint(call(r.case))))
    jitted = jax.jit(jax.checkpoint(call(r.case)))
    check(r.case, data, gradients(r.case, data, jitted))


def run_scan(r: Reported) -> None:
    """Three steps of a scan with a branch inside, against the loop written out."""
    case, data = r.case, r.data()
    f = call(case)
    x, w, b = operands(data)
    dy = jnp.asarray(data.dy)

    def step(x, use):
        y = jax.lax.cond(use, lambda x: f(x, w_(), b_()), lambda x: x, x)
        return y, y

    holder = {}
    w_, b_ = (lambda: holder["w"]), (lambda: holder["b"])

    def scanned(x, w, b):
        holder.update(w=w, b=b)
        return jnp.vdot(jax.lax.scan(step, x, jnp.array([True, False, True]))[0], dy)

    def loop(x, w, b):
        return jnp.vdot(f(f(x, w, b), w, b), dy)

    got = jax.jit(jax.grad(scanned, argnums=(0, 1, 2)))(x, w, b)
    want = jax.grad(loop, argnums=(0, 1, 2))(x, w, b)
    for a, e in zip(got, want, strict=True):
        oracle.assert_same(a, e, case.dtype, case.reduction)
    # The loop against the oracle: dx of the second step is dy of the first.
    first = case.expected(data)["y"]
    second = case.expected(Data(first.value, data.weight, data.bias, data.dy))
    outer = case.expected(Data(data.x, data.weight, data.bias, second["dx"].value))
    exact = (
        outer["dx"].value,
        outer["dw"].value + second["dw"].value,
        outer["db"].value + second["db"].value,
    )
    for a, e in zip(got, exact, strict=True):
        oracle.assert_same(a, e, case.dtype, 8 * case.reduction)


def run_value_and_grad(r: Reported) -> None:
    case, data = r.case, r.data()
    dy = jnp.asarray(data.dy)

    def loss(*args):
        y = call(case)(*args)
        return jnp.vdot(y, dy), y

    (value, y), grads = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    )(*operands(data))
    check(case, data, {"y": y, **dict(zip(("dx", "dw", "db"), grads, strict=True))})
    want = np.vdot(case.expected(data)["y"].value, oracle.as_float64(data.dy))
    np.testing.assert_allclose(value, want, rtol=1e-4)


def run_weight_only(r: Reported) -> None:
    """Asked for dw alone, the program holds no input gradient."""
    case, data = r.case, r.data()
    x, w, b = operands(data)
    dy = jnp.asarray(data.dy)

    def loss(w, x, b):
        return jnp.vdot(call(case)(x, w, b), dy)

    grad = jax.jit(jax.grad(loss))
    check(case, data, {"dw": grad(w, x, b)})
    text = grad.lower(w, x, b).compile().as_text()
    native = re.findall(r'custom_call_target="(jax_transconv\.[\w.]+)"', text)
    assert not [name for name in native if "grad_input" in name], native
    # Something must compute it, natively or as a convolution or contraction.
    work = native + re.findall(r"= \S+ (convolution|dot|fusion|custom-call)\(", text)
    assert work, text
    # And the program that wants dx as well has more in it.
    both = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(w, x, b)
    assert both.cost_analysis() is None or _flops(both) > _flops(grad.lower(w, x, b))


def _flops(lowered) -> float:
    """XLA's count of floating-point work; custom calls count as nothing."""
    analysis = lowered.cost_analysis() or {}
    calls = lowered.as_text().count("jax_transconv.")
    return analysis.get("flops", 0.0) + 1e9 * calls


def _stack(case, count: int) -> list[Data]:
    return [case.replace(name=f"{case.name}/{i}").data() for i in range(count)]


def _vmapped(case, batched: str, in_axis: int = 0, out_axis: int = 0, count: int = 3):
    """vmap over the named operands ("x", "w", "b") against the oracle in a loop."""
    samples = _stack(case, count)
    first = samples[0]
    names = ("x", "w", "b")

    def member(i: int) -> Data:
        pick = samples[i]
        return Data(
            pick.x if "x" in batched else first.x,
            pick.weight if "w" in batched else first.weight,
            (pick.bias if "b" in batched else first.bias) if case.bias else None,
            first.dy,
        )

    members = [member(i) for i in range(count)]
    args, axes = [], []
    for name, field in zip(names, ("x", "weight", "bias"), strict=True):
        values = [getattr(m, field) for m in members]
        if values[0] is None:
            args.append(None)
            axes.append(None)
        elif name in batched:
            axis = min(in_axis, values[0].ndim)
            args.append(jnp.stack([jnp.asarray(v) for v in values], axis=axis))
            axes.append(axis)
        else:
            args.append(jnp.asarray(values[0]))
            axes.append(None)
    y = jax.vmap(call(case), in_axes=tuple(axes), out_axes=out_axis)(*args)
    y = np.moveaxis(np.asarray(y), out_axis, 0)
    assert len(y) == count
    for value, data in zip(y, members, strict=True):
        check(case, data, {"y": value})


def run_vmap(batched: str, in_axis: int = 0, out_axis: int = 0):
    return lambda r: _vmapped(r.case, batched, in_axis, out_axis)


def run_vmap_empty(r: Reported) -> None:
    case = r.case
    _, w, b = operands(r.data())
    x = jnp.zeros((0, *case.x_shape), case.dtype)
    y = jax.vmap(lambda x: call(case)(x, w, b))(x)
    assert list(y.shape) == [0, *r.entry["out_shape"]]
    dw = jax.grad(
        lambda w: jax.vmap(lambda x: call(case)(x, w, b))(x).sum(), argnums=0
    )(w)
    np.testing.assert_array_equal(dw, np.zeros(case.weight_shape))


def run_vmap_grad(r: Reported) -> None:
    case = r.case
    samples = _stack(case, 4)
    w, b = operands(samples[0])[1:]
    xs = jnp.stack([jnp.asarray(s.x) for s in samples])
    dys = jnp.stack([jnp.asarray(s.dy) for s in samples])

    def loss(params, x, dy):
        return jnp.vdot(call(case)(x, *params), dy)

    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))((w, b), xs, dys)
    dxs = jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, 0))((w, b), xs, dys)
    for i, sample in enumerate(samples):
        data = Data(sample.x, samples[0].weight, samples[0].bias, sample.dy)
        check(case, data, {"dw": grads[0][i], "db": grads[1][i], "dx": dxs[i]})


def run_vmap_vmap(r: Reported) -> None:
    case = r.case
    rows, columns = _stack(case, 2), _stack(case.replace(name=f"{case.name}-w"), 3)
    xs = jnp.stack([jnp.asarray(s.x) for s in rows])
    ws = jnp.stack([jnp.asarray(s.weight) for s in columns])
    b = jnp.asarray(rows[0].bias)
    inner = jax.vmap(lambda x, w: call(case)(x, w, b), in_axes=(None, 0))
    y = jax.vmap(inner, in_axes=(0, None))(xs, ws)
    swapped = jax.vmap(
        jax.vmap(lambda x, w: call(case)(x, w, b), in_axes=(0, None)), in_axes=(None, 0)
    )(xs, ws)
    assert y.shape == (2, 3, *case.out_shape)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            data = Data(row.x, column.weight, rows[0].bias, rows[0].dy)
            check(case, data, {"y": y[i, j]})
            check(case, data, {"y": swapped[j, i]})


def run_vmap_jit_vmap(r: Reported) -> None:
    case = r.case
    samples = _stack(case, 6)
    xs = jnp.stack([jnp.asarray(s.x) for s in samples]).reshape(2, 3, *case.x_shape)
    _, w, b = operands(samples[0])

    def f(x):
        return call(case)(x, w, b)

    y = jax.vmap(jax.jit(jax.vmap(f)))(xs)
    other = jax.jit(jax.vmap(jax.vmap(jax.jit(f))))(xs)
    for i, sample in enumerate(samples):
        data = Data(sample.x, samples[0].weight, samples[0].bias, samples[0].dy)
        check(case, data, {"y": y[divmod(i, 3)]})
        check(case, data, {"y": other[divmod(i, 3)]})


def run_one_call(r: Reported) -> None:
    """vmap folds into the batch: the text of one call, and no loop."""
    _vmapped(r.case, "x")
    case = r.case
    x, w, b = operands(r.data())
    native = "cuda" if jax.default_backend() == "gpu" else "cpu"
    for backend in (native, "xla"):
        f = call(case, backend=backend)
        one = jax.jit(f).lower(x, w, b).as_text()
        stacked = jax.jit(jax.vmap(f, in_axes=(0, None, None)))
        many = stacked.lower(jnp.stack([x] * 5), w, b).as_text()
        pattern = (
            r"jax_transconv\.forward"
            if backend == native
            else r"stablehlo\.convolution"
        )
        assert len(re.findall(pattern, one)) >= 1
        assert len(re.findall(pattern, many)) == len(re.findall(pattern, one))
        if backend == native:
            assert len(re.findall(pattern, many)) == 1
        assert "stablehlo.while" not in many


def run_nhwc(r: Reported) -> None:
    case, data = r.case.replace(layout="NHWC"), r.data()
    x, w, b, dy = cases.put(case, data)
    y, pullback = jax.vjp(call(case), x, w, b)
    dx, dw, db = pullback(dy)
    got = {"y": case.from_layout(y), "dx": case.from_layout(dx), "dw": dw, "db": db}
    check(r.case, data, got)


def run_state_dict(r: Reported) -> None:
    """The arrays of a torch module, untouched."""
    torch = pytest.importorskip("torch")
    case = r.case
    module = torch.nn.ConvTranspose2d(
        case.cin, case.cout, (case.kh, case.kw), case.stride
    )
    state = {k: v.numpy() for k, v in module.state_dict().items()}
    assert state["weight"].shape == case.weight_shape
    x = case.data().x
    y = call(case)(x, state["weight"], state["bias"])
    want = module(torch.tensor(x)).detach()
    assert list(y.shape) == r.entry["out_shape"]
    oracle.assert_same(y, want, case.dtype, case.reduction)
    data = Data(x, state["weight"], state["bias"], case.data().dy)
    check(case, data, {"y": y})


def run_flax(padding: str):
    """Our op in place of a flax layer whose kernel is (kh, kw, cout, cin)."""

    def run(r: Reported) -> None:
        linen = pytest.importorskip("flax.linen")
        case, data = r.case, r.data()
        layer = linen.ConvTranspose(
            case.cout,
            (case.kh, case.kw),
            case.stride,
            padding=padding,
            transpose_kernel=True,
            precision="highest",
        )
        kernel = data.weight.transpose(2, 3, 1, 0)
        x = jnp.asarray(data.x.transpose(0, 2, 3, 1))
        want = layer.apply({"params": {"kernel": kernel, "bias": data.bias}}, x)
        weight = jnp.asarray(kernel).transpose(3, 2, 0, 1)
        y = conv_transpose2d(
            *(x, weight, jnp.asarray(data.bias)),
            stride=case.stride,
            padding=padding,
            layout="NHWC",
            precision="highest",
        )
        oracle.assert_same(y, want, case.dtype, case.reduction)
        # The same crop, spelled out: SAME at stride 2 and kernel 3 cuts one pixel.
        crop = {"VALID": (0, 0), "SAME": (0, 1)}[padding]
        size = [
            oracle.out_extent(n, k, s, 1, crop)
            for n, k, s in zip(
                (case.h, case.w), (case.kh, case.kw), case.stride, strict=True
            )
        ]
        assert list(y.shape[1:3]) == size
        explicit = call(case, padding=(crop, crop), output_padding=0)(*operands(data))
        oracle.assert_same(
            explicit, np.asarray(want).transpose(0, 3, 1, 2), case.dtype, case.reduction
        )

    return run


def run_keras(r: Reported) -> None:
    """Keras "same" gives in * stride; the crop is torch's padding with output_padding.

    Keras itself is not needed: its rule is the gradient of a TF "SAME" convolution,
    which is the vjp of `lax.conv_general_dilated` with that padding.
    """
    case, data = r.case, r.data()
    kernel = jnp.asarray(data.weight.transpose(2, 3, 1, 0))  # (kh, kw, cout, cin)
    out = (case.n, case.h * case.stride[0], case.w * case.stride[1], case.cout)

    def convolution(y):
        return jax.lax.conv_general_dilated(
            *(y, kernel, case.stride, "SAME"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="highest",
        )

    transpose = jax.linear_transpose(
        convolution, jax.ShapeDtypeStruct(out, jnp.dtype(case.dtype))
    )
    (want,) = transpose(jnp.asarray(data.x.transpose(0, 2, 3, 1)))
    want = np.asarray(want).transpose(0, 3, 1, 2) + data.bias[:, None, None]
    # TF pads a stride-2, 3-wide SAME convolution of an even map by (0, 1).
    y = call(case, padding=((0, 1), (0, 1)), output_padding=0)(*operands(data))
    assert list(y.shape) == r.entry["out_shape"]
    oracle.assert_same(y, want, case.dtype, case.reduction)
    # torch's symmetric padding has the same shape and, the point of the case, not the
    # same numbers.
    symmetric = call(case)(*operands(data))
    assert symmetric.shape == y.shape
    assert not np.allclose(symmetric, y, atol=0.1)


def run_equinox(r: Reported) -> None:
    """Equinox's kernel (cout, cin // g, kh, kw): flipped, swapped within each group.

    Equinox itself is not needed: its layer is a correlation over the stretched input.
    """
    case, data = r.case, r.data()
    g = case.groups
    kernel = np.random.default_rng(7).standard_normal(
        (case.cout, case.cin // g, case.kh, case.kw)
    )
    kernel = kernel.astype(np.float32)
    want = jax.lax.conv_general_dilated(
        jnp.asarray(data.x),
        jnp.asarray(kernel),
        window_strides=(1, 1),
        padding=[
            (d * (k - 1) - lo, d * (k - 1) - hi)
            for d, k, (lo, hi) in zip(
                case.dilation, (case.kh, case.kw), case.crop, strict=True
            )
        ],
        lhs_dilation=case.stride,
        rhs_dilation=case.dilation,
        feature_group_count=g,
        precision="highest",
    )
    want = np.asarray(want) + data.bias[:, None, None]
    split = kernel[:, :, ::-1, ::-1].reshape(
        g, case.cout // g, case.cin // g, case.kh, case.kw
    )
    weight = split.swapaxes(1, 2).reshape(case.weight_shape)
    x, _, b = operands(data)
    y = call(case)(x, jnp.asarray(weight), b)
    assert list(y.shape) == r.entry["out_shape"]
    oracle.assert_same(y, want, case.dtype, case.reduction)
    check(case, Data(data.x, weight, data.bias, data.dy), {"y": y})


def _layers():
    """The flax layers, in both styles, as (name, constructor)."""
    pytest.importorskip("flax")
    from flax import nnx

    from jax_transconv.nn import linen as our_linen
    from jax_transconv.nn import nnx as our_nnx

    def linen(cin, cout, **kwargs):
        layer = our_linen.ConvTranspose2d(cout, **kwargs)
        # A linen module is complete only when it meets an input.
        jax.eval_shape(
            layer.init, jax.random.key(0), jnp.zeros((1, 4, 4, cin), "float32")
        )
        return layer

    def eager(cin, cout, **kwargs):
        return our_nnx.ConvTranspose2d(cin, cout, rngs=nnx.Rngs(0), **kwargs)

    return [("linen", linen), ("nnx", eager)]


def run_layer_groups(r: Reported) -> None:
    case = r.case
    for _, build in _layers():
        build(4, 4, kernel_size=(3, 3), groups=4)
        with pytest.raises(ValueError, match="groups") as caught:
            build(case.cin, case.cout, kernel_size=(3, 3), groups=case.groups)
        message = str(caught.value)
        assert re.search(r"\b1\b", message)
        assert re.search(r"\b4\b", message)


def run_layer_padding_mode(r: Reported) -> None:
    """No layer takes a padding mode that it would then ignore."""
    mode = r.extra["padding_mode"]
    for _, build in _layers():
        with pytest.raises((ValueError, TypeError), match="padding_mode"):
            build(2, 2, kernel_size=(3, 3), padding_mode=mode)
    from jax_transconv import torch_compat

    with pytest.raises(ValueError, match="padding_mode") as caught:
        torch_compat.ConvTranspose2d(2, 2, 3, padding_mode=mode)
    assert mode in str(caught.value)


def run_shim_output_size(r: Reported) -> None:
    from jax_transconv import torch_compat

    case = r.case
    size = r.extra["output_size"]
    layer = torch_compat.ConvTranspose2d(case.cin, case.cout, 3, stride=2, padding=1)
    x = case.data().x
    y = layer.forward(jnp.asarray(x), output_size=size)
    assert list(y.shape) == r.entry["out_shape"]
    weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
    equivalent = case.replace(output_padding=(1, 1))
    # The layer has no precision argument: on a GPU its float32 is TF32.
    precision = "default" if jax.default_backend() == "gpu" else "highest"
    want = equivalent.expected(Data(x, weight, bias, equivalent.data().dy))["y"]
    oracle.assert_close(y, want, case.dtype, precision=precision)


def run_jit(r: Reported) -> None:
    """Right, and compiled within five seconds; a second try forgives a busy machine."""
    case, data = r.case, r.data()
    args = operands(data)
    f = jax.jit(lambda *a: call(case)(*a))
    check(case, data, {"y": f(*args)})
    dy = jnp.asarray(data.dy)
    grad = jax.jit(jax.grad(lambda *a: jnp.vdot(call(case)(*a), dy), argnums=(0, 1, 2)))
    for lowered in (f.lower(*args), grad.lower(*args)):
        spent = []
        for _ in range(2):
            jax.clear_caches()
            start = time.perf_counter()
            lowered.compile()
            spent.append(time.perf_counter() - start)
            if spent[-1] < 5:
                break
        assert min(spent) < 5, spent


def run_donate(r: Reported) -> None:
    import warnings

    case, data = r.case, r.data()
    args = operands(data)
    f = jax.jit(lambda *a: call(case)(*a), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated buffers were not usable.*")
        check(case, data, {"y": f(*args)})
        # Where shapes agree the buffer really may be reused: still the right numbers.
        same = case.replace(name="donated", stride=(1, 1), padding=(1, 1))
        data = same.data()
        g = jax.jit(lambda *a: call(same)(*a), donate_argnums=0)
        check(same, data, {"y": g(*operands(data))})


def run_command_buffer(r: Reported) -> None:
    """All passes, replayed."""
    case = r.case
    samples = _stack(case, 5)
    names = ("y", "dx", "dw", "db")
    wanted = []
    for sample in samples:
        doubled = Data(2 * sample.x, sample.weight, sample.bias, 2 * sample.dy)
        wanted.append(case.expected(doubled))
    for backend in ("auto", "cuda"):
        f = call(case, backend=backend)

        def step(x, w, b, dy, f=f):
            y, pullback = jax.vjp(f, x * 2, w, b)
            return [v + 1 for v in (y, *pullback(dy * 2))]

        def arguments(sample):
            return (*operands(sample), jnp.asarray(sample.dy))

        for i, results in rows.replays(step, map(arguments, samples)):
            for name, value in zip(names, results, strict=True):
                want = wanted[i][name]
                value = (value - 1).astype(case.dtype)
                oracle.assert_same(
                    value, want.value, case.dtype, 4 * want.reduction, what=name
                )


def run_cpu_vs_gpu(r: Reported) -> None:
    case, data = r.case, r.data()
    results = []
    for platform in ("cpu", "cuda"):
        x, w, b, dy = cases.put(case, data, jax.devices(platform)[0])
        y, pullback = jax.vjp(call(case), x, w, b)
        assert {d.platform for d in y.devices()} == {
            "cpu" if platform == "cpu" else "gpu"
        }
        results.append([np.asarray(v) for v in (y, *pullback(dy))])
    for a, b in zip(*results, strict=True):
        oracle.assert_same(b, a, case.dtype, case.reduction)


def run_twice(r: Reported) -> None:
    data = r.data()
    f = jax.jit(lambda *a: call(r.case)(*a))
    first = np.asarray(f(*operands(data)))
    for _ in range(5):
        np.testing.assert_array_equal(
            np.asarray(f(*operands(data))).view(np.uint32), first.view(np.uint32)
        )
    check(r.case, data, {"y": first})


def run_grad_twice(r: Reported) -> None:
    data = r.data()
    first = gradients(r.case, data)
    assert set(first) == {"dx", "dw", "db"}
    for _ in range(5):
        for name, value in gradients(r.case, data).items():
            np.testing.assert_array_equal(
                np.asarray(value).view(np.uint32),
                np.asarray(first[name]).view(np.uint32),
                err_msg=name,
            )
    check(r.case, data, first)


def run_memory(r: Reported) -> None:
    """No stretched copy of the input, in any pass."""
    case, data = r.case, r.data()
    x, w, _ = operands(data)
    dy = jnp.asarray(data.dy)
    sizes = x.nbytes + w.nbytes + dy.nbytes
    f = call(case)
    programs = {
        "forward": (jax.jit(lambda x, w: f(x, w)), (x, w)),
        "gradients": (jax.jit(lambda x, w, dy: jax.vjp(f, x, w)[1](dy)), (x, w, dy)),
    }
    for name, (program, args) in programs.items():
        analysis = program.lower(*args).compile().memory_analysis()
        assert analysis is not None, "this backend reports no memory"
        used = analysis.temp_size_in_bytes
        assert used <= 2 * sizes, (
            f"{name}: {used} bytes of scratch for {sizes} of arrays"
        )
    check(
        case.replace(bias=False),
        Data(data.x, data.weight, None, data.dy),
        {"y": f(x, w)},
    )


def _best(function, repeats: int = 7) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def run_cpu_speed(argument: int | None):
    """At most five times torch's time on this CPU (`argument`: of that gradient)."""

    def run(r: Reported) -> None:
        torch = pytest.importorskip("torch")
        case, data = r.case, r.data()
        x, w, b, dy = cases.put(case, data, jax.devices("cpu")[0])
        if argument is None:
            ours = jax.jit(lambda x, w, b, dy: call(case)(x, w, b))
        else:
            ours = jax.jit(
                lambda x, w, b, dy: jax.vjp(lambda w: call(case)(x, w, b), w)[1](dy)[0]
            )
        tx, tw, tb, tdy = (
            torch.tensor(a) for a in (data.x, data.weight, data.bias, data.dy)
        )
        if argument is None:

            def theirs():
                return torch.nn.functional.conv_transpose2d(
                    tx, tw, tb, **case.torch_kwargs
                )
        else:

            def theirs():
                return torch.ops.aten.convolution_backward(
                    *(
                        tdy,
                        tx,
                        tw,
                        [case.cout],
                        case.stride,
                        case.padding,
                        case.dilation,
                    ),
                    *(True, case.output_padding, case.groups, (False, True, False)),
                )

        got = np.asarray(ours(x, w, b, dy))
        name = "y" if argument is None else "dw"
        oracle.assert_close(got, case.expected(data)[name], case.dtype)
        ratio = math.inf
        for _ in range(3):
            mine = _best(lambda: ours(x, w, b, dy).block_until_ready())
            ratio = min(ratio, mine / _best(theirs))
            if ratio <= 5:
                break
        assert ratio <= 5, f"{ratio:.1f} times torch's time"

    return run


def _python(code: str, **environment: str) -> str:
    """Run code in a fresh interpreter with every warning an error."""
    import os

    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_CALL = """
import numpy as np
x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
w = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3)
for backend in ("auto", "cpu" if jax.default_backend() == "cpu" else "cuda"):
    y = jax_transconv.conv_transpose2d(x, w, stride=2, backend=backend)
    print(y.shape, float(np.asarray(y, np.float64).sum()))
"""
_ANSWER = str(
    (lambda x, w: (x.sum(axis=(0, 2, 3)) * w.sum(axis=(1, 2, 3))).sum())(
        np.arange(32.0).reshape(1, 2, 4, 4), np.arange(36.0).reshape(2, 2, 3, 3)
    )
)


def run_import_first(r: Reported) -> None:
    out = _python(f"import jax_transconv, jax\n{_CALL}")
    assert out.splitlines() == [f"{tuple(r.entry['out_shape'])} {_ANSWER}"] * 2, out


def run_import_alone(r: Reported) -> None:
    block = """
import sys
for name in ("torch", "flax", "safetensors"):
    sys.modules[name] = None  # as if not installed
"""
    out = _python(f"{block}\nimport jax_transconv, jax\n{_CALL}")
    assert out.splitlines() == [f"{tuple(r.entry['out_shape'])} {_ANSWER}"] * 2, out


def run_each_device(r: Reported) -> None:
    case, data = r.case, r.data()
    for device in jax.devices()[:2] + jax.devices("cpu")[:3]:
        x, w, b, dy = cases.put(case, data, device)
        y, pullback = jax.vjp(call(case), x, w, b)
        grads = pullback(dy)
        for value in (y, *grads):
            assert value.devices() == {device}
        check(case, data, {"y": y, **dict(zip(("dx", "dw", "db"), grads, strict=True))})


def _cpu_mesh(r: Reported, kind=AxisType.Auto):
    count = r.entry["devices"]
    return jax.make_mesh(
        (count // 2, 2),
        ("a", "b"),
        axis_types=(kind, kind),
        devices=jax.devices("cpu")[:count],
    )


def _passes(case):
    def run(x, w, b, dy):
        y, pullback = jax.vjp(call(case), x, w, b)
        return dict(zip(("y", "dx", "dw", "db"), (y, *pullback(dy)), strict=True))

    return run


_WHOLE = P()


def run_sharded(x, w=_WHOLE, b=_WHOLE, *, sums: int = 0, kind=AxisType.Auto):
    """jit of sharded operands: all four results, and `sums` all-reduces in forward."""

    def run(r: Reported) -> None:
        case, data = r.case, r.data()
        mesh = _cpu_mesh(r, kind)
        arrays = (data.x, data.weight, data.bias)
        args = [
            jax.device_put(a, NamedSharding(mesh, s))
            for a, s in zip(arrays, (x, w, b), strict=True)
        ]
        with jax.set_mesh(mesh):
            y = jax.jit(call(case))(*args)
            dy = jax.device_put(data.dy, y.sharding)
            check(case, data, jax.jit(_passes(case))(*args, dy))
            text = jax.jit(call(case)).lower(*args).compile().as_text()
        assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == sums

    return run


def run_shard_map(r: Reported) -> None:
    """The gradient taken inside, so that the weight's is summed by its type."""
    case, data = r.case, r.data()
    batch = P(("a", "b"))
    run = jax.shard_map(
        _passes(case),
        mesh=_cpu_mesh(r),
        in_specs=(batch, P(), P(), batch),
        out_specs={"y": batch, "dx": batch, "dw": P(), "db": P()},
    )
    args = (data.x, data.weight, data.bias, data.dy)
    check(case, data, jax.jit(run)(*args))


def run_export(order: int, x: str | None = None, *sizes: tuple[int, int, int]):
    """Through bytes and back, with derivatives; `x` may be a symbolic shape."""

    def run(r: Reported) -> None:
        data = r.data()
        args = list(operands(data))
        if x is not None:
            shape = export.symbolic_shape(x)
            args[0] = jax.ShapeDtypeStruct(shape, args[0].dtype)
        program = export.export(jax.jit(call(r.case)), disabled_checks=export_checks())(
            *args
        )
        program = export.deserialize(program.serialize(vjp_order=order))
        for n, h, w in sizes or [(r.case.n, r.case.h, r.case.w)]:
            case = r.case.replace(name=f"{r.id}-{n}-{h}", n=n, h=h, w=w)
            member = case.data()
            got = {"y": program.call(*operands(member))}
            if order:
                got |= gradients(case, member, program.call)
            check(case, member, got)
            if order == 2:
                got, want = (_second(f, member) for f in (program.call, call(case)))
                oracle.assert_same(got, want, case.dtype, 10 * case.reduction)

    return run


def _second(f, data: Data):
    """A derivative with respect to the weight of a derivative with respect to x."""
    x, w, b = operands(data)

    def first(w):
        return (jax.grad(lambda x: jnp.sin(f(x, w, b)).sum())(x) ** 2).sum()

    return jax.grad(first)(w)


# --- big ones, on a GPU ---------------------------------------------------------------


def _random(shape, seed: int, dtype="bfloat16"):
    """Standard normal on the device, made in the dtype itself."""
    return jax.jit(lambda: jax.random.normal(jax.random.key(seed), shape, dtype))()


def _positions(shape, count: int = 200) -> list[tuple[int, ...]]:
    """First, last, either side of 2**31 elements, and some hundred in between."""
    total = math.prod(shape)
    flat = {0, total - 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1}
    flat |= {int(v) for v in np.random.default_rng(1).integers(0, total, count)}
    return [
        tuple(int(i) for i in np.unravel_index(f, shape))
        for f in sorted(flat)
        if f < total
    ]


def _gather(array, positions) -> np.ndarray:
    index = tuple(np.array(axis) for axis in zip(*positions, strict=True))
    return oracle.as_float64(np.asarray(array[index]))


def _sampled(got, want, scale, dtype, reduction):
    value, scale = np.array(want), np.array(scale)
    oracle.assert_close(got, oracle.Expected(value, scale, reduction), dtype)


def run_big_map(r: Reported) -> None:
    """BIG-03: y is x times one number."""
    x = _random(r.case.x_shape, 0)
    w = jnp.full(r.case.weight_shape, 1.5, "bfloat16")
    y = call(r.case)(x, w)
    assert list(y.shape) == r.entry["out_shape"]
    at = _positions(y.shape)
    assert max(np.ravel_multi_index(p, y.shape) for p in at) > 2**31
    want = 1.5 * _gather(x, at)
    _sampled(_gather(y, at), want, np.abs(want), r.case.dtype, 1)


def run_big_columns(r: Reported) -> None:
    """BIG-05: where a column buffer would have 4.3e9 elements."""
    case, data = r.case, r.data()
    y = call(case)(*operands(data))
    assert list(y.shape) == r.entry["out_shape"]
    at = _positions(y.shape, 400)
    x = np.pad(oracle.as_float64(data.x[0, 0]), 15)
    w = oracle.as_float64(data.weight[0])[:, ::-1, ::-1]
    want, scale = [], []
    for _, o, row, column in at:
        products = x[row : row + 16, column : column + 16] * w[o]
        want.append(products.sum())
        scale.append(np.abs(products).sum())
    _sampled(_gather(y, at), want, scale, case.dtype, 256)


def run_big_weight_grad(r: Reported) -> None:
    """BIG-06: each weight sums 1.1e6 products."""
    case, data = r.case, r.data()
    dw = gradients(case, data)["dw"]
    at = _positions(dw.shape, 200)
    x, dy = oracle.as_float64(data.x[0, 0]), oracle.as_float64(data.dy[0])
    want, scale = [], []
    for _, o, row, column in at:
        products = x * dy[o, row : row + 1024, column : column + 1024]
        want.append(products.sum())
        scale.append(np.abs(products).sum())
    _sampled(_gather(dw, at), want, scale, case.dtype, x.size)


def run_big_weight(r: Reported) -> None:
    """BIG-07: a weight of 2**31 elements; each output sums a column of it."""
    case = r.case
    x = _random(case.x_shape, 0)
    w = _random(case.weight_shape, 1)
    y = call(case)(x, w)
    assert list(y.shape) == r.entry["out_shape"]
    at = _positions(y.shape, 200)
    xs = oracle.as_float64(np.asarray(x)).reshape(-1)
    channels = np.array([p[1] for p in at])
    columns = oracle.as_float64(np.asarray(w[:, channels, 0, 0]))
    _sampled(
        _gather(y, at),
        (xs[:, None] * columns).sum(axis=0),
        np.abs(xs[:, None] * columns).sum(axis=0),
        case.dtype,
        len(xs),
    )


def run_big_backward(r: Reported) -> None:
    """BIG-08: a cotangent of 4.3e9 elements."""
    case = r.case
    x, w = _random(case.x_shape, 0), _random(case.weight_shape, 1)
    b = jnp.zeros((case.cout,), "bfloat16")
    dy = _random(case.out_shape, 2)
    dx, dw, db = jax.jit(lambda x, w, b, dy: jax.vjp(call(case), x, w, b)[1](dy))(
        x, w, b, dy
    )
    # dx[n, i, h, w] sums a 2 x 2 patch over the output channels.
    weight = oracle.as_float64(np.asarray(w))
    at = _positions(dx.shape, 200)
    want, scale = [], []
    for n, i, row, column in at:
        patch = dy[n, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        products = oracle.as_float64(np.asarray(patch)) * weight[i]
        want.append(products.sum())
        scale.append(np.abs(products).sum())
    _sampled(_gather(dx, at), want, scale, case.dtype, 256)

    # dw and db sum 1.7e7 and 6.7e7 terms: on the device, in float64, plane by plane.
    @functools.partial(jax.jit, static_argnums=(4, 5))
    def products(x, dy, i, o, row, column):
        def of(n):
            plane = dy[n, o, row::2, column::2].astype("float64")
            terms = x[n, i].astype("float64") * plane
            return jnp.stack([terms.sum(), jnp.abs(terms).sum()])

        return sum(of(n) for n in range(case.n))

    rng = np.random.default_rng(3)
    at = [(0, 0, 0, 0), (63, 63, 1, 1)]
    at += [tuple(int(rng.integers(0, n)) for n in dw.shape) for _ in range(60)]
    sums = np.array([np.asarray(products(x, dy, *p)) for p in at])
    _sampled(_gather(dw, at), sums[:, 0], sums[:, 1], case.dtype, case.n * 2048**2)

    @jax.jit
    def total(dy, o):
        terms = [dy[n, o].astype("float64") for n in range(case.n)]
        return jnp.stack(
            [sum(t.sum() for t in terms), sum(jnp.abs(t).sum() for t in terms)]
        )

    channels = (0, 1, 31, 62, 63)
    sums = np.array([np.asarray(total(dy, o)) for o in channels])
    got = oracle.as_float64(np.asarray(db))[list(channels)]
    _sampled(got, sums[:, 0], sums[:, 1], case.dtype, case.n * 4096**2)


def run_gpu_speed(r: Reported) -> None:
    """No pass mark against torch (benchmarks/ has that); never slower than plain XLA.

    The forward numbers are compared too, between our choice and the xla row.
    """
    case = r.case
    x = _random(case.x_shape, 0, case.dtype)
    w = _random(case.weight_shape, 1, case.dtype)
    b = _random((case.cout,), 2, case.dtype) if case.bias else None
    dy = _random(case.out_shape, 3, case.dtype)
    keywords = {**case.kwargs, "precision": "default"}

    def step(backend):
        f = functools.partial(conv_transpose2d, backend=backend, **keywords)

        @jax.jit
        def run(x, w, b, dy):
            y, pullback = jax.vjp(f, x, w, b)
            return y, pullback(dy)

        return run

    programs = {backend: step(backend) for backend in ("auto", "xla")}
    results = {name: p(x, w, b, dy) for name, p in programs.items()}
    for a, e in zip(*(jax.tree.leaves(v) for v in results.values()), strict=True):
        a, e = (oracle.as_float64(np.asarray(v)) for v in (a, e))
        scale = np.linalg.norm(e)
        bound = oracle.tolerance(case.dtype, case.reduction, "default").norm
        assert np.linalg.norm(a - e) <= 2 * bound * scale
    ratio = math.inf
    for _ in range(3):
        spent = {
            name: _best(lambda p=p: jax.block_until_ready(p(x, w, b, dy)), 15)
            for name, p in programs.items()
        }
        ratio = min(ratio, spent["auto"] / spent["xla"])
        print(r.id, {name: f"{1e3 * t:.3f} ms" for name, t in spent.items()})
    assert ratio <= 1.1, spent


# --- the table ------------------------------------------------------------------------

RUNNERS = {
    # Semantics.
    **dict.fromkeys(
        (
            *("SEM-02", "SEM-03", "SEM-07", "SEM-11", "SEM-13", "SEM-14", "SEM-17"),
            *("SEM-20", "SEM-21", "SEM-26", "SEM-28", "SEM-29", "SEM-31", "SEM-32"),
            *("SEM-34", "SEM-35", "SEM-37", "SEM-39"),
            *("GRP-01", "GRP-03", "GRP-04", "GRP-05", "GRP-06", "GRP-07", "GRP-09"),
            *("ZERO-01", "DT-05", "LIM-03", "LIM-04", "LIM-05", "LIM-06"),
        ),
        run_forward,
    ),
    "DT-03": run_infinite_weight,
    "SEM-04": run_crop_equivalence,
    "SEM-24": run_output_size,
    "SEM-38": run_argument_forms,
    "SEM-40": run_positional,
    # Refusals.
    **dict.fromkeys(
        ("ERR-01", "ERR-02"),
        run_error(
            ValueError, "output_padding=1", "stride=1", "dilation=1", "height|width"
        ),
    ),
    "ERR-04": run_error(ValueError, "output_padding=2", "stride=2", "dilation=1"),
    "ERR-05": run_error(ValueError, "output_padding", "-1"),
    "ERR-07": run_error(ValueError, "stride", "-1"),
    "ERR-09": run_error(ValueError, "dilation", r"\b0\b"),
    "ERR-13": run_error(
        ValueError, "channels", r"\b3\b", r"\b4\b", r"in_channels, .*groups, kh, kw"
    ),
    "ERR-14": run_error(
        ValueError, "channels", r"\b3\b", r"\b8\b", r"in_channels, .*groups, kh, kw"
    ),
    "ERR-15": run_error(ValueError, "bias", r"\(4,\)", r"\(2,\)"),
    "ERR-18": run_error(ValueError, "weight", "rank 3", "rank 4"),
    "ERR-20": run_error(TypeError, "stride", r"2\.0", "float"),
    "ERR-21": run_error(ValueError, "padding", "'same'", "SAME"),
    "ERR-22": run_layer_padding_mode,
    "ERR-24": run_error(ValueError, "output", "height", r"\b0\b"),
    "ERR-25": run_error(ValueError, "output", "height", r"\b0\b"),
    "ERR-29": run_error(ValueError, "2147483648|2147483650"),
    "ZERO-04": run_error(ValueError, "weight", r"\(3, 0, 3, 3\)"),
    "ZERO-05": run_error(ValueError, r"\bx\b", "height", r"\b0\b"),
    "DT-12": run_error(TypeError, r"\bx\b", "bool", "float32"),
    "DT-13": run_complex,
    "ZERO-07": run_vmap_empty,
    # Dtypes.
    "DT-01": run_rounded,
    "DT-07": run_rounded,
    "DT-08": run_rounded,
    "DT-09": run_grad,
    "DT-15": run_value,
    # Differentiation.
    "AD-07": run_jvp,
    "AD-08": run_jacfwd,
    "AD-09": run_hvp,
    "AD-12": run_linear_transpose,
    **dict.fromkeys(("AD-14", "AD-15", "AD-16", "LIM-07"), run_grad),
    "AD-17": run_no_bias_grad,
    "AD-18": run_remat,
    "AD-19": run_scan,
    "AD-20": run_value_and_grad,
    "AD-21": run_weight_only,
    # vmap.
    "VM-01": run_vmap("x"),
    "VM-04": run_vmap("b"),
    "VM-05": run_vmap_grad,
    "VM-07": run_vmap("x", 2, 1),
    "VM-08": run_vmap_vmap,
    "VM-11": run_vmap_jit_vmap,
    "VM-12": run_one_call,
    # Layouts and other libraries.
    "LAY-02": run_nhwc,
    "LAY-07": run_shim_output_size,
    "PORT-01": run_state_dict,
    "PORT-03": run_flax("VALID"),
    "PORT-04": run_flax("SAME"),
    "PORT-05": run_keras,
    "PORT-06": run_equinox,
    "PORT-10": run_layer_groups,
    # Programs.
    "JIT-01": run_jit,
    "JIT-03": run_donate,
    "JIT-04": run_command_buffer,
    "JIT-06": run_cpu_vs_gpu,
    "DET-01": run_twice,
    "DET-02": run_grad_twice,
    "MEM-01": run_memory,
    "CPU-02": run_cpu_speed(1),
    "CPU-03": run_cpu_speed(None),
    "ENV-02": run_import_first,
    "ENV-05": run_import_alone,
    # Several devices.
    "SHARD-03": run_sharded(P(("a", "b")), kind=AxisType.Explicit),
    "SHARD-05": run_sharded(P(None, ("a", "b")), P(("a", "b")), sums=1),
    "SHARD-06": run_sharded(P("a"), P(None, "b"), P("b")),
    "SHARD-07": run_sharded(P(None, ("a", "b")), P(("a", "b")), P(("a", "b"))),
    "SHARD-09": run_sharded(P(None, None, ("a", "b"))),
    "SHARD-10": run_shard_map,
    "SHARD-12": run_each_device,
    # Export.
    "EXP-01": run_export(0),
    "EXP-02": run_export(2),
    "EXP-03": run_export(0, "n, 2, 4, 4", (1, 4, 4), (5, 4, 4)),
    "EXP-04": run_export(1, "1, 2, h, w", (1, 4, 6), (1, 7, 3)),
    # Sizes.
    "BIG-03": run_big_map,
    "BIG-05": run_big_columns,
    "BIG-06": run_big_weight_grad,
    "BIG-07": run_big_weight,
    "BIG-08": run_big_backward,
    **dict.fromkeys(("BIG-09", "BIG-11", "BIG-12"), run_gpu_speed),
}

# Translated, in a file of its own.
ELSEWHERE = {
    "ENV-01": "build/test_import.py::test_newer_headers_are_refused_at_import",
}

OUT_OF_SCOPE = {
    **dict.fromkeys(
        ("LAY-04", "LAY-05"), "the bridge that lets torch autograd call this function"
    ),
}

_NEED_FLAX = {"PORT-03", "PORT-04", "PORT-10", "ERR-22"}
_NEED_TORCH = {"PORT-01", "CPU-02", "CPU-03"}


def _parameter(name: str):
    r = REPORTED[name]
    marks = []
    if r.needs_gpu:
        marks.append(pytest.mark.cuda)
    if r.entry.get("big"):
        marks.append(pytest.mark.slow)
    if name in _NEED_FLAX:
        marks.append(pytest.mark.flax)
    if name in _NEED_TORCH:
        marks.append(pytest.mark.torch)
    return pytest.param(r, id=name, marks=marks)


@pytest.mark.parametrize("reported", [_parameter(name) for name in RUNNERS])
def test_case(reported):
    RUNNERS[reported.id](reported)


def test_every_case_is_accounted_for():
    """Each id is run here, run elsewhere or out of scope: exactly one of the three."""
    places = [set(RUNNERS), set(ELSEWHERE), set(OUT_OF_SCOPE)]
    assert sum(map(len, places)) == len(set().union(*places)), "an id is listed twice"
    assert set().union(*places) == set(REPORTED)


def test_elsewhere_is_there():
    """What is said to be tested in another file is a test of that file."""
    import pathlib

    for name, place in ELSEWHERE.items():
        path, test = place.split("::")
        text = (pathlib.Path(__file__).parent / path).read_text()
        assert re.search(rf"^def {test}\(", text, re.MULTILINE), name
        assert name in text


def test_expectations_are_met_by_their_runners():
    """An error case runs as a refusal, any other does not; a few may do either."""
    refusals = {
        name
        for name, run in RUNNERS.items()
        if run.__qualname__.startswith("run_error")
        or run in (run_layer_padding_mode, run_layer_groups, run_complex)
    }
    for name in RUNNERS:
        expect = REPORTED[name].expect
        if "_or_error:" not in expect:
            assert ("error:" in expect) == (name in refusals), name
