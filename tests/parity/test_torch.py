"""Against PyTorch on CPU: every case that torch can say, and random legal ones.

float64 to 1e-9 and float32 to 1e-5 relative, forward and all gradients.
"""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transconv import conv_transpose2d

pytestmark = pytest.mark.torch

_PROMISED = {"float64": 1e-9, "float32": 1e-5}


def reference(case, data):
    """torch in float64, by name of the result."""
    import torch

    def tensor(array):
        if array is None:
            return None
        return torch.tensor(oracle.as_float64(array), requires_grad=True)

    x, w, b = (tensor(a) for a in (data.x, data.weight, data.bias))
    y = torch.nn.functional.conv_transpose2d(x, w, b, **case.torch_kwargs)
    y.backward(torch.tensor(oracle.as_float64(data.dy)))
    results = {"y": y.detach(), "dx": x.grad, "dw": w.grad}
    if b is not None:
        results["db"] = b.grad
    return {name: value.numpy() for name, value in results.items()}


def ours(case, data, **changes):
    """Value and gradients under one jit, in NCHW."""
    x, w, b, dy = cases.put(case, data)
    keywords = {**case.kwargs, **changes}

    @jax.jit
    def run(x, w, b, dy):
        y, pullback = jax.vjp(lambda *a: conv_transpose2d(*a, **keywords), x, w, b)
        return y, *pullback(dy)

    y, dx, dw, db = run(x, w, b, dy)
    results = {"y": case.from_layout(y), "dx": case.from_layout(dx), "dw": dw}
    if b is not None:
        results["db"] = db
    return results


def check(case, data, got):
    want, scales = reference(case, data), case.expected(data)
    assert set(got) == set(want)
    for name, value in got.items():
        expected = oracle.Expected(
            want[name], scales[name].scale, scales[name].reduction
        )
        oracle.assert_close(value, expected, case.dtype, what=name)


TORCH_CASES = [c for c in cases.TABLE if c.is_torch]


@pytest.mark.parametrize("case", TORCH_CASES, ids=str)
def test_table(case):
    data = case.data()
    check(case, data, ours(case, data))


@given(cases.legal_cases("float64"))
def test_random_float64(case):
    data = case.data()
    check(case, data, ours(case, data))


@given(cases.legal_cases("float32"))
def test_random_float32(case):
    data = case.data()
    check(case, data, ours(case, data))


@given(cases.legal_cases("float32"))
def test_random_float32_of_plain_jax(case):
    """The rows that every platform falls back on."""
    data = case.data()
    check(case, data, ours(case, data, backend="xla"))


@given(cases.legal_cases("float64"))
def test_the_oracle_is_torch(case):
    """The oracle that everything else is measured with, by torch."""
    data = case.data()
    want, got = reference(case, data), case.expected(data)
    for name, value in want.items():
        oracle.assert_close(
            got[name].value,
            oracle.Expected(value, got[name].scale, got[name].reduction),
            "float64",
            what=name,
        )
        # What is promised, literally, against a typical size of the result.
        size = max(np.linalg.norm(value), np.linalg.norm(got[name].scale) / 8)
        assert np.linalg.norm(got[name].value - value) <= 1e-9 * size


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_promised(dtype):
    """The tolerances that the rest of the suite computes are within the promise."""
    for length in (1, 100, 10**4, 10**8):
        assert oracle.tolerance(dtype, length).norm <= _PROMISED[dtype]


@given(cases.legal_cases("float32"))
def test_what_torch_refuses_is_refused(case):
    """output_padding one too large: both refuse, and with one less both accept."""
    import torch

    data = case.data()
    limit = [max(s, d) for s, d in zip(case.stride, case.dilation, strict=True)]
    keywords = {**case.kwargs, "layout": "NCHW"}
    for axis in range(2):
        extra = list(case.output_padding)
        extra[axis] = limit[axis]
        theirs = {**case.torch_kwargs, "output_padding": tuple(extra)}
        with pytest.raises(RuntimeError, match="output padding"):
            torch.nn.functional.conv_transpose2d(
                torch.tensor(data.x), torch.tensor(data.weight), **theirs
            )
        with pytest.raises(ValueError, match="output_padding"):
            conv_transpose2d(
                data.x, data.weight, **{**keywords, "output_padding": tuple(extra)}
            )


@given(cases.legal_cases("float32"), st.data())
def test_output_size_of_the_module(case, data):
    """`output_size` has the meaning and the range of torch's module."""
    import torch

    arrays = case.data()
    module = torch.nn.ConvTranspose2d(
        *(case.cin, case.cout, (case.kh, case.kw)),
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
        groups=case.groups,
    )
    base = case.replace(output_padding=(0, 0)).out_shape[2:]
    wanted = tuple(
        b + data.draw(st.integers(-1, s))
        for b, s in zip(base, case.stride, strict=True)
    )
    weight, bias = (p.detach().numpy() for p in (module.weight, module.bias))
    keywords = {**case.kwargs, "layout": "NCHW", "output_size": wanted}
    del keywords["output_padding"]
    legal = all(
        b <= o < b + s for o, b, s in zip(wanted, base, case.stride, strict=True)
    )
    if not legal or min(wanted) < 1:
        with pytest.raises(ValueError, match="output"):
            conv_transpose2d(arrays.x, weight, bias, **keywords)
        if min(wanted) >= 1:
            with pytest.raises(ValueError, match="requested an output size"):
                module(torch.tensor(arrays.x), output_size=wanted)
        return
    want = module(torch.tensor(arrays.x), output_size=wanted)
    got = conv_transpose2d(arrays.x, weight, bias, **keywords)
    oracle.assert_same(got, want, "float32", case.reduction)


def test_second_order_is_torch():
    """The gradient of a gradient penalty, in x and in w."""
    import torch

    case = cases.Case(
        "penalty",
        2,
        4,
        6,
        4,
        3,
        3,
        2,
        (2, 3),
        (1, 0),
        (1, 2),
        (1, 1),
        2,
        dtype="float64",
    )
    data = case.data()

    def penalty(x, w):
        grad = jax.grad(
            lambda x: jnp.sum(jnp.sin(conv_transpose2d(x, w, **case.kwargs)))
        )(x)
        return jnp.sum(grad**2)

    got = jax.grad(penalty, argnums=(0, 1))(
        jnp.asarray(data.x), jnp.asarray(data.weight)
    )
    x, w = (torch.tensor(a, requires_grad=True) for a in (data.x, data.weight))
    y = torch.nn.functional.conv_transpose2d(x, w, **case.torch_kwargs)
    (grad,) = torch.autograd.grad(torch.sin(y).sum(), x, create_graph=True)
    (grad**2).sum().backward()
    for a, b in zip(got, (x.grad, w.grad), strict=True):
        oracle.assert_same(a, b, case.dtype, 16 * case.reduction)
