"""Is the result right? Samples of it against float64, computed from the definition.

A whole float64 reference of a large layer takes longer than everything else. Instead, y
and dx are checked at some hundred positions, corners included, for all channels; dw at
some dozen elements and db at some channels, each a full sum. The reference is numpy's,
from the definition: nothing of ours and nothing of the peers' is in it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from benchmarks.peers import Arrays
from benchmarks.shapes import Layer

_POINTS = 384
_PAIRS = 1 << 18  # of a point and a tap
_MACS = 200_000_000  # float64 multiplications that a reference may cost


def _nchw(a: Any, layout: str) -> Any:
    """A result or an input, indexable in PyTorch's order of axes.

    PyTorch's tensors have it whatever their memory. JAX's arrays are looked at through
    PyTorch if it can, because JAX would compile a program for every gather; else they
    come to the host whole.
    """
    if type(a).__module__.startswith("torch"):
        return a
    try:
        import torch

        view = torch.from_dlpack(a)
    except (ImportError, RuntimeError, BufferError, TypeError):
        view = np.asarray(a)
        return np.moveaxis(view, 3, 1) if layout == "NHWC" and a.ndim == 4 else view
    return view.permute(0, 3, 1, 2) if layout == "NHWC" else view


def _pick(a: Any, *index: Any) -> np.ndarray:
    """`a[index]` on the host in float64; None takes a whole axis."""
    if isinstance(a, np.ndarray):
        at = tuple(slice(None) if k is None else k for k in index)
        return a[at].astype(np.float64)
    import torch

    at = tuple(
        slice(None) if k is None else torch.as_tensor(k, device=a.device).long()
        for k in index
    )
    return a[at].double().cpu().numpy()


def _host(a: Any) -> np.ndarray:
    return np.asarray(a).astype(np.float64)


class Reference:
    """Expected samples of every result of one problem, computed when first asked for.

    Args:
        layer: the problem.
        arrays: x, w, b and dy, as JAX arrays.
        seed: draws which samples are taken.
    """

    def __init__(self, layer: Layer, arrays: Arrays, seed: int) -> None:
        self._layer = layer
        self._arrays = arrays
        self._rng = np.random.default_rng(seed)
        self._ready: dict[str, tuple[Any, np.ndarray]] = {}

    def error(self, name: str, result: Any) -> float:
        """Relative error of a result's samples, in norm; infinite if not finite.

        Args:
            name: "y", "y_plain" (without bias), "dx", "dw" or "db".
            result: JAX array in the layer's layout, or PyTorch tensor.
        """
        if name not in self._ready:
            make = {
                "y": lambda: self._image(True, bias=True),
                "y_plain": lambda: self._image(True, bias=False),
                "dx": lambda: self._image(False, bias=False),
                "dw": self._weight,
                "db": self._bias,
            }[name]
            self._ready[name] = make()
        where, expected = self._ready[name]
        if name in ("dw", "db"):
            found = _pick(_nchw(result, "NCHW"), *where)
        else:
            n, i, j = where
            found = _pick(_nchw(result, self._layer.layout), n, None, i, j)
        if not np.isfinite(found).all():
            return math.inf
        scale = float(np.linalg.norm(expected))
        distance = float(np.linalg.norm(found - expected))
        return distance / scale if scale else (0.0 if distance == 0 else math.inf)

    def _points(self, size: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """Corners and random positions, as many as the budget allows."""
        layer = self._layer
        per_point = layer.cin * layer.cout // layer.groups * math.prod(layer.kernel)
        taps = math.prod(layer.kernel)
        count = int(min(_POINTS, max(min(_MACS // per_point, _PAIRS // taps), 16)))
        corners = list(
            itertools.product((0, layer.n - 1), (0, size[0] - 1), (0, size[1] - 1))
        )
        draws = [self._rng.integers(0, k, count) for k in (layer.n, *size)]
        points = np.stack(draws, axis=1)
        points[: len(corners)] = corners[: len(points)]
        return tuple(points.T)

    def _pairs(
        self, axis: int, position: int, of_output: bool
    ) -> list[tuple[int, int]]:
        """(tap, opposite position) pairs that meet one position of y or of x."""
        layer = self._layer
        s, d, lo = layer.stride[axis], layer.dilation[axis], layer.crop[axis][0]
        pairs = []
        for k in range(layer.kernel[axis]):
            if of_output:
                i, rest = divmod(position + lo - d * k, s)
                if rest == 0 and 0 <= i < layer.size[axis]:
                    pairs.append((k, i))
            elif 0 <= (o := s * position + d * k - lo) < layer.out_size[axis]:
                pairs.append((k, o))
        return pairs

    def _image(self, of_output: bool, bias: bool) -> tuple[Any, np.ndarray]:
        layer = self._layer
        x, w, b, dy = self._arrays
        g = layer.groups
        n, i, j = self._points(layer.out_size if of_output else layer.size)
        table = np.array(
            [
                (p, n[p], r, c, kh, kw)
                for p in range(len(n))
                for kh, r in self._pairs(0, int(i[p]), of_output)
                for kw, c in self._pairs(1, int(j[p]), of_output)
            ],
            dtype=np.int32,
        ).reshape(-1, 6)
        weight = _host(w).reshape(g, layer.cin // g, layer.cout // g, *layer.kernel)
        if not of_output:
            weight = weight.swapaxes(1, 2)
        channels = layer.cout if of_output else layer.cin
        total = np.zeros((len(n), channels))
        image = _nchw(x if of_output else dy, layer.layout)
        source = _pick(image, table[:, 1], None, table[:, 2], table[:, 3])
        tap = table[:, 4] * layer.kernel[1] + table[:, 5]
        order = np.argsort(tap, kind="stable")
        ends = np.searchsorted(tap[order], np.arange(math.prod(layer.kernel) + 1))
        for k, (first, last) in enumerate(itertools.pairwise(ends)):
            rows = order[first:last]
            a = source[rows].reshape(-1, g, weight.shape[1]).swapaxes(0, 1)
            part = a @ weight[..., k // layer.kernel[1], k % layer.kernel[1]]
            total[table[rows, 0]] += part.swapaxes(0, 1).reshape(-1, channels)
        return (n, i, j), total + _host(b) if bias else total

    def _channels(self) -> tuple[np.ndarray, np.ndarray]:
        """Some input and output channels of one group."""
        layer = self._layer
        ci, co = layer.cin // layer.groups, layer.cout // layer.groups
        group = int(self._rng.integers(layer.groups))
        most = 4 if layer.n * math.prod(layer.size) < 2_000_000 else 2

        def some(each: int) -> np.ndarray:
            chosen = self._rng.choice(each, size=min(most, each), replace=False)
            return np.sort(chosen) + group * each

        return some(ci), some(co)

    def _planes(self, a: Any, channels: np.ndarray) -> np.ndarray:
        """Some channels of an image, (channels, n, h, w)."""
        return np.moveaxis(_pick(_nchw(a, self._layer.layout), None, channels), 1, 0)

    def _weight(self) -> tuple[Any, np.ndarray]:
        layer = self._layer
        x, _, _, dy = self._arrays
        cs, outs = self._channels()
        xs, dys = self._planes(x, cs), self._planes(dy, outs)
        taps = list(itertools.product(*map(range, layer.kernel)))
        work = len(cs) * len(outs) * layer.n * math.prod(layer.size)
        count = int(min(len(taps), max(_MACS // work, 2)))
        chosen = self._rng.permutation(len(taps))[:count]
        index, values = [], []
        for tap in (taps[t] for t in chosen):
            a, b = xs, dys
            for axis in (0, 1):
                s, k = layer.stride[axis], tap[axis]
                offset = layer.dilation[axis] * k - layer.crop[axis][0]
                first = max(-(offset // s), 0)
                last = min(
                    (layer.out_size[axis] - 1 - offset) // s, layer.size[axis] - 1
                )
                count_ = max(last - first + 1, 0)
                at = [slice(None)] * 4
                at[2 + axis] = slice(first, first + count_)
                a = a[tuple(at)]
                start = s * first + offset
                at[2 + axis] = slice(start, start + s * (count_ - 1) + 1, s)
                b = b[tuple(at)] if count_ else b[:, :, :0, :0]
            if 0 in a.shape or 0 in b.shape:
                product = np.zeros((len(cs), len(outs)))
            else:
                flat_a = a.reshape(len(cs), -1)
                flat_b = b.reshape(len(outs), -1)
                product = flat_a @ flat_b.T
            for (p, c), (q, o) in itertools.product(enumerate(cs), enumerate(outs)):
                index.append((c, o % (layer.cout // layer.groups), *tap))
                values.append(product[p, q])
        return np.array(index, dtype=np.int32).T, np.array(values)

    def _bias(self) -> tuple[Any, np.ndarray]:
        dy = self._arrays[3]
        some = min(8, self._layer.cout)
        outs = np.sort(self._rng.choice(self._layer.cout, size=some, replace=False))
        planes = self._planes(dy, outs[:4])
        sums = planes.sum(axis=(1, 2, 3))
        return outs[None, :4].astype(np.int32), sums
