import sys

import jax
import numpy as np
import pytest

from benchmarks import check, peers
from benchmarks.shapes import Layer

LAYERS = [
    Layer("plain", 2, 4, 6, (5, 6), (3, 3), (2, 2), (1, 1), ((1, 0), (1, 0))),
    Layer(
        "groups", 2, 4, 6, (5, 4), (3, 2), (2, 3), (2, 1), ((1, 1), (0, 2)), groups=2
    ),
    Layer(
        "nhwc", 1, 3, 5, (4, 6), (2, 2), (3, 1), crop=((0, -1), (1, 0)), layout="NHWC"
    ),
    Layer("sparse", 2, 3, 2, (4, 4), (1, 1), (4, 4), crop=((2, 3), (1, 0))),
]


@pytest.fixture(params=LAYERS, ids=lambda layer: layer.id)
def layer(request):
    return request.param


def _whole(layer, arrays):
    """All results by a scatter over every element, in float64."""
    x, w, b, dy = (np.asarray(a).astype(np.float64) for a in arrays)
    if layer.layout == "NHWC":
        x, dy = x.transpose(0, 3, 1, 2), dy.transpose(0, 3, 1, 2)
    y = np.zeros(dy.shape)
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    ci, co = layer.cin // layer.groups, layer.cout // layer.groups
    for c in range(layer.cin):
        for o in range(co):
            out = c // ci * co + o
            for i, j, kh, kw in np.ndindex(*layer.size, *layer.kernel):
                at = [
                    layer.stride[a] * p + layer.dilation[a] * k - layer.crop[a][0]
                    for a, (p, k) in enumerate(((i, kh), (j, kw)))
                ]
                if all(0 <= t < n for t, n in zip(at, layer.out_size, strict=True)):
                    y[:, out, at[0], at[1]] += x[:, c, i, j] * w[c, o, kh, kw]
                    dx[:, c, i, j] += dy[:, out, at[0], at[1]] * w[c, o, kh, kw]
                    dw[c, o, kh, kw] += x[:, c, i, j] @ dy[:, out, at[0], at[1]]
    found = {
        "y_plain": y,
        "y": y + b[:, None, None],
        "dx": dx,
        "dw": dw,
        "db": dy.sum((0, 2, 3)),
    }
    if layer.layout == "NHWC":
        for name in ("y_plain", "y", "dx"):
            found[name] = found[name].transpose(0, 2, 3, 1)
    return found


@pytest.mark.parametrize("torch_missing", [False, True])
def test_right_results_have_no_error_and_wrong_ones_have(
    layer, torch_missing, monkeypatch
):
    if torch_missing:
        monkeypatch.setitem(sys.modules, "torch", None)
    arrays = peers.make_inputs(layer, 1, 3)[0]
    reference = check.Reference(layer, arrays, 5)
    for name, right in _whole(layer, arrays).items():
        assert reference.error(name, jax.numpy.asarray(right)) < 1e-12, name
        off = jax.numpy.asarray(right * 1.01)
        assert reference.error(name, off) == pytest.approx(0.01), name
        assert reference.error(name, jax.numpy.asarray(right * np.nan)) == np.inf


def test_a_wrong_corner_is_seen(layer):
    arrays = peers.make_inputs(layer, 1, 3)[0]
    right = _whole(layer, arrays)["y"].copy()
    right[-1, -1, -1, -1] += 100
    assert check.Reference(layer, arrays, 5).error("y", jax.numpy.asarray(right)) > 0.1


def test_inputs_are_fresh_and_reproducible():
    a, b = peers.make_inputs(LAYERS[0], 2, 1)
    again = peers.make_inputs(LAYERS[0], 1, 2)[0]
    assert not np.array_equal(a[0], b[0])
    assert not np.array_equal(a[0], again[0])
    assert [t.shape for t in a] == [(2, 4, 5, 6), (4, 6, 3, 3), (6,), (2, 6, 10, 12)]
