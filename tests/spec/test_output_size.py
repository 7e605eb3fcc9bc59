"""Output sizes: the formula, `output_size`, and torch's rule for output_padding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import Case
from hypothesis import given
from hypothesis import strategies as st

from jax_transconv import conv_transpose2d

AXIS = st.tuples(
    st.integers(1, 9),  # size
    st.integers(1, 7),  # kernel
    st.integers(1, 6),  # stride
    st.integers(1, 5),  # dilation
)


def shape_of(size, kernel, **kwargs):
    """The result's spatial shape, without computing anything."""
    x = jax.ShapeDtypeStruct((1, 2, *size), jnp.dtype("float32"))
    w = jax.ShapeDtypeStruct((2, 3, *kernel), jnp.dtype("float32"))
    out = jax.eval_shape(lambda x, w: conv_transpose2d(x, w, **kwargs), x, w)
    assert out.shape[:2] == (1, 3)
    assert out.dtype == jnp.float32
    return out.shape[2:]


@given(AXIS, AXIS, st.data())
def test_formula(h, w, data):
    """(in - 1) * s + d * (k - 1) + 1 - lo - hi, for any crop that leaves something."""
    size, kernel, stride, dilation = zip(h, w, strict=True)
    crop = []
    for axis in (h, w):
        full = oracle.full_extent(*axis)
        lo = data.draw(st.integers(-5, full + 3))
        crop.append((lo, full - lo - data.draw(st.integers(1, full + 4))))
    want = tuple(
        oracle.out_extent(*axis, c) for axis, c in zip((h, w), crop, strict=True)
    )
    got = shape_of(size, kernel, stride=stride, dilation=dilation, padding=tuple(crop))
    assert got == want


@given(AXIS, AXIS)
def test_output_padding_rule(h, w):
    """Legal exactly where it is below the stride or below the dilation, per axis."""
    size, kernel, stride, dilation = zip(h, w, strict=True)
    limit = [max(s, d) for s, d in zip(stride, dilation, strict=True)]
    base = shape_of(size, kernel, stride=stride, dilation=dilation)
    for extra in ((limit[0] - 1, 0), (0, limit[1] - 1), (limit[0] - 1, limit[1] - 1)):
        got = shape_of(
            size, kernel, stride=stride, dilation=dilation, output_padding=extra
        )
        assert got == (base[0] + extra[0], base[1] + extra[1])
    for extra in ((limit[0], 0), (0, limit[1])):
        with pytest.raises(ValueError, match="output_padding"):
            shape_of(
                size, kernel, stride=stride, dilation=dilation, output_padding=extra
            )


@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (4, 1)])
def test_every_legal_output_size_and_no_other(stride):
    """The legal range is base .. base + stride - 1 on each axis, and is told."""
    size, kernel = (3, 4), (3, 2)
    base = shape_of(size, kernel, stride=stride)
    ranges = [range(b - 1, b + s + 1) for b, s in zip(base, stride, strict=True)]
    legal = [range(b, b + s) for b, s in zip(base, stride, strict=True)]
    for wanted in itertools.product(*ranges):
        if all(n in one for n, one in zip(wanted, legal, strict=True)):
            assert shape_of(size, kernel, stride=stride, output_size=wanted) == wanted
            continue
        with pytest.raises(ValueError, match=r"(?s)output_size.*Resolution:") as caught:
            shape_of(size, kernel, stride=stride, output_size=wanted)
        ends = [(one[0], one[-1]) for one in legal]
        assert any(f"{a} to {b}" in str(caught.value) for a, b in ends)


def test_output_size_is_output_padding():
    """The same numbers as with the output_padding that it stands for."""
    case = Case("size", 2, 3, 2, 4, 5, 3, 2, stride=(3, 4), padding=(1, 0))
    data = case.data()
    plain = conv_transpose2d(
        data.x, data.weight, data.bias, stride=(3, 4), padding=(1, 0)
    )
    for extra in ((0, 3), (2, 0), (2, 3)):
        wanted = plain.shape[2] + extra[0], plain.shape[3] + extra[1]
        by_size, by_padding = (
            conv_transpose2d(
                *(data.x, data.weight, data.bias), stride=(3, 4), padding=(1, 0), **form
            )
            for form in ({"output_size": wanted}, {"output_padding": extra})
        )
        assert by_size.shape[2:] == wanted
        np.testing.assert_array_equal(by_size, by_padding)


@pytest.mark.parametrize(
    "form", [list, tuple, np.array, lambda v: list(map(np.int64, v))]
)
def test_forms_of_output_size(form):
    assert shape_of((4, 4), (3, 3), stride=2, padding=1, output_size=form((7, 8))) == (
        7,
        8,
    )


def test_output_size_unbatched():
    """Honoured for an input without a batch axis, too."""
    x, w = np.ones((2, 4, 4), np.float32), np.ones((2, 3, 3, 3), np.float32)
    y = conv_transpose2d(x, w, stride=2, padding=1, output_size=(8, 7))
    assert y.shape == (3, 8, 7)


def test_output_size_nhwc():
    x, w = np.ones((1, 4, 5, 2), np.float32), np.ones((2, 3, 3, 3), np.float32)
    y = conv_transpose2d(x, w, stride=2, padding=1, output_size=(8, 9), layout="NHWC")
    assert y.shape == (1, 8, 9, 3)


@pytest.mark.parametrize(
    "form",
    [
        (2, 3),
        [2, 3],
        np.array([2, 3]),
        (np.int64(2), np.int32(3)),
        range(2, 4),
        jnp.array([2, 3], "int32"),
    ],
    ids=["tuple", "list", "array", "numpy_ints", "range", "jax_array"],
)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "output_padding"])
def test_forms_of_a_pair(name, form):
    """Any sequence of two integers is a pair."""
    rest = {"stride": (4, 4)} if name == "output_padding" else {}
    size, kernel = (5, 6), (4, 5)
    want = shape_of(size, kernel, **{name: (2, 3)}, **rest)
    assert shape_of(size, kernel, **{name: form}, **rest) == want


@pytest.mark.parametrize("form", [2, np.int32(2), np.array(2), (2,), [2]], ids=repr)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "output_padding"])
def test_forms_of_one_integer(name, form):
    rest = {"stride": (4, 4)} if name == "output_padding" else {}
    want = shape_of((5, 6), (4, 5), **{name: (2, 2)}, **rest)
    assert shape_of((5, 6), (4, 5), **{name: form}, **rest) == want


@pytest.mark.parametrize(
    "form",
    [
        ((1, -2), (0, 3)),
        [[1, -2], [0, 3]],
        [(1, -2), [0, 3]],
        np.array([[1, -2], [0, 3]]),
    ],
    ids=["tuples", "lists", "mixed", "array"],
)
def test_forms_of_a_crop(form):
    assert shape_of((5, 6), (4, 5), padding=form) == (8 - 1 + 2, 10 - 3)


def test_unbatched_is_a_batch_of_one(rng):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    w = rng.standard_normal((3, 2, 3, 2)).astype(np.float32)
    b = rng.standard_normal(2).astype(np.float32)
    y = conv_transpose2d(x, w, b, stride=2)
    np.testing.assert_array_equal(y, conv_transpose2d(x[None], w, b, stride=2)[0])
    nhwc = conv_transpose2d(x.transpose(1, 2, 0), w, b, stride=2, layout="NHWC")
    assert nhwc.shape == (*y.shape[1:], 2)
    oracle.assert_same(nhwc.transpose(2, 0, 1), y, "float32", 18)
